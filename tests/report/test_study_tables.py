from statistics import fmean, stdev

import pytest
from fabricated_study import make_record

from evolora.report.study_data import read_study
from evolora.report.study_tables import arm_table, cell_table, setting_table, spending_table


@pytest.fixture
def data(make_study):
    return read_study(make_study())


def test_arms_have_mean_and_standard_deviation(data):
    headings, rows = arm_table(data)
    assert headings[:2] == ["arm", "mean reward on fresh test prompts (higher is better)"]
    values = data.values("eggroll", "reward")
    assert rows[1][0].text == "eggroll"
    assert rows[1][1].text == f"{fmean(values):.4g} ± {stdev(values):.3g}"
    assert float(rows[1][1].value) == pytest.approx(fmean(values))


def test_cells_have_every_number_whole_for_sorting_and_nothing_nested(data):
    headings, rows = cell_table(data)
    assert headings == ["arm", "seed", "validation", "reward", "forgotten", "norm"]
    assert len(rows) == 24
    assert [float(row[3].value) for row in rows] == [cell["reward"] for cell in data.cells]


def test_what_came_to_nothing_is_a_dash_and_counted(make_study):
    record = make_record()
    record["cells"][0]["reward"] = None
    for cell in record["cells"]:
        cell["norm"] = None
    data = read_study(make_study(record))
    assert (cell_table(data)[1][0][3].text, cell_table(data)[1][0][3].value) == ("–", "")  # noqa: RUF001
    assert arm_table(data)[1][0][1].text.endswith("(7 of 8)")
    assert arm_table(data)[1][0][3].value == ""


def test_one_seed_has_no_deviation(make_study):
    assert "±" not in arm_table(read_study(make_study(seeds=[1])))[1][0][1].text


def test_settings_tell_what_was_chosen_among_how_many(make_study):
    record = make_record()
    record["plan"]["arms"]["adamw"] = {"options": {}, "grid": []}
    record["chosen"] = {"eggroll": {"lr": 0.3, "shape": [1, 2]}}
    _, rows = setting_table(read_study(make_study(record)))
    assert [entry.text for entry in rows[0]] == ["adamw", "–", "–", "not tuned"]  # noqa: RUF001
    assert [entry.text for entry in rows[1]] == ["eggroll", "method eggroll", "lr 0.3, shape [1, 2]", "3"]


def test_spending_is_the_mean_over_seeds_in_human_units(data):
    headings, rows = spending_table(data)
    assert headings == ["arm", "forward work", "backward work", "evaluations", "time", "tokens"]
    assert [entry.text for entry in rows[1]] == [
        "eggroll",
        "97 TFLOP",
        "0 FLOP",
        "4,096",
        "1 min 32 s",
        "120,024",
    ]


def test_without_ledgers_there_is_no_spending(make_study):
    record = make_record()
    for cell in record["cells"]:
        del cell["ledger"]
    assert spending_table(read_study(make_study(record)))[1] == []
    record["cells"][0]["ledger"] = {"seconds": None}
    assert spending_table(read_study(make_study(record)))[1][0][1].text == "–"  # noqa: RUF001
