import csv
import io

from fabricated_run import entry

from evolora.report.comparison import comparison_figure, comparison_rows
from evolora.report.figure_csv import csv_of
from evolora.report.figures import norm_figure, reward_figure
from evolora.report.run_data import read_run


def rows(view, table=None):
    text = csv_of(view, table)
    assert text.endswith("\r\n")
    return list(csv.reader(io.StringIO(text)))


def test_a_band_becomes_its_edges():
    journal = [entry(step) for step in range(1, 6)]
    journal[2]["reward_mean"] = None
    found = rows(reward_figure(journal).views["steps"])
    assert found[0] == ["series", "label", "step", "reward", "low", "high"]
    for edge, sign in (("upper", 1), ("lower", -1)):
        points = [row for row in found if row[0] == f"mean ± spread, {edge} edge"]
        assert [row[2] for row in points] == ["1", "2", "4", "5"]
        assert float(points[0][3]) == journal[0]["reward_mean"] + sign * journal[0]["reward_std"]
    gap = next(row for row in found if row[0] == "mean of the members" and row[2] == "3")
    assert gap[3] == ""


def test_error_bars_become_ends_and_names_come_back_as_they_were(make_run):
    parts = {"families": {"<b>&": {"accuracy": 0.5, "ci": [0.25, 1.0]}, "y": {"accuracy": 0.5}}}
    result = {key: {"accuracy": 0.5, **parts} for key in ("base", "adapted")}
    figure = comparison_figure(comparison_rows(read_run(make_run(result=result))), False)
    row = next(row for row in rows(figure.views["all"]) if row[:2] == ["base", "<b>&"])
    assert row[2] == "0.5"
    assert row[4:] == ["0.25", "1.0"]


def test_axes_with_different_titles_are_told_by_their_direction():
    found = rows(norm_figure([entry(1), entry(2)]).views["steps"])
    assert found[0][2:4] == ["step", "y"]


def test_a_figures_own_table_is_taken_and_quoted():
    table = [["arm", "x"], ['a "b", c', None]]
    assert rows({"data": [], "layout": {}}, table) == [["arm", "x"], ['a "b", c', ""]]
