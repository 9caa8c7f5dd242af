from functools import partial

import pytest
from fabricated_run import write_run
from fabricated_study import write_study


@pytest.fixture
def make_run(tmp_path):
    return partial(write_run, tmp_path)


@pytest.fixture
def make_study(tmp_path):
    return partial(write_study, tmp_path)
