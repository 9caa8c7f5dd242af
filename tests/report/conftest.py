from functools import partial

import pytest
from fabricated_run import write_run


@pytest.fixture
def make_run(tmp_path):
    return partial(write_run, tmp_path)
