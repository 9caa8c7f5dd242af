import json

import pytest
from fabricated_study import make_record

from evolora.errors import RunError
from evolora.report import is_study, write_study_report
from evolora.report.study_data import Measure, read_study


def test_arms_and_seeds_stand_in_the_order_of_the_plan(make_study):
    record = make_record()
    record["cells"].reverse()
    record["cells"].append({"arm": "late", "seed": 99, "reward": 0.1})
    data = read_study(make_study(record))
    assert data.arms == ["adamw", "eggroll", "replicator", "late"]
    assert data.seeds == [*range(20, 28), 99]
    assert data.values("late", "reward") == [None] * 8 + [0.1]


def test_measures_are_those_that_the_study_names(make_study):
    assert read_study(make_study()).measures == [
        Measure("reward", "mean reward on fresh test prompts", True),
        Measure("forgotten", "reward lost on the earlier task", False),
        Measure("norm", "norm of the adapter", None),
    ]


def test_without_names_every_number_of_the_cells_is_a_measure(make_study):
    data = read_study(make_study(measures=None))
    assert [measure.key for measure in data.measures] == ["validation", "reward", "forgotten", "norm"]


def test_what_is_no_number_is_no_measure_and_what_came_to_nothing_still_is(make_study):
    cells = [{"arm": "a", "seed": 0, "lost": None, "text": "x", "flag": True, "curves": {}, "list": [1]}]
    assert read_study(make_study(measures=None, cells=cells)).keys == ["lost"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "cannot be read"),
        ("[]", "no JSON object"),
        ('{"status": "done"}', "no study"),
        (json.dumps({**make_record(), "cells": "many"}), "no cells"),
        (json.dumps({**make_record(), "cells": [{"seed": 1}]}), "a cell has no arm"),
        (json.dumps({**make_record(), "cells": [{"arm": "a", "seed": [1]}]}), "a cell has no seed"),
        (json.dumps({**make_record(), "findings": [None]}), "a finding has no claim"),
    ],
)
def test_a_damaged_record_is_one_helpful_line_and_leaves_no_page(make_study, text, words):
    folder = make_study()
    (folder / "record.json").write_text(text)
    with pytest.raises(RunError, match=words) as error:
        write_study_report(folder)
    assert str(folder / "record.json") in str(error.value)
    assert str(error.value).endswith("run the study again")
    assert not (folder / "report.html").exists()


def test_a_copy_of_a_record_gets_a_page_beside_it(make_study, tmp_path):
    folder, copy = make_study(), tmp_path / "toy.small.json"
    (folder / "record.json").rename(copy)
    assert is_study(copy)
    page = write_study_report(copy)
    assert page == tmp_path / "toy.small.html"
    copy.rename(folder / "record.json")
    assert write_study_report(folder).read_text() == page.read_text()


def test_a_folder_without_a_record_says_so(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(RunError, match="holds no finished study"):
            write_study_report(folder)


def test_a_study_is_told_from_a_run_by_its_files(make_study, make_run, tmp_path):
    study, run = make_study(), make_run()
    assert is_study(study)
    assert not is_study(run)
    assert not is_study(tmp_path / "none")
    (study / "record.json").rename(study / "plan.json")
    assert is_study(study)
