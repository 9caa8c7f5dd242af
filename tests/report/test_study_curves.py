import pytest
from fabricated_study import make_record

from evolora.report.study_curves import curve_figure, mean_curve
from evolora.report.study_data import read_study

NAN = float("nan")


def figure_of(make_study, curves, arms=("a", "b"), **changes):
    """Curves by arm: one list of points a seed."""
    cells = [
        {"arm": arm, "seed": seed, "curves": {"reward": points}}
        for arm in arms
        for seed, points in enumerate(curves[arm])
    ]
    seeds = range(max(len(found) for found in curves.values()))
    return curve_figure(read_study(make_study(arms=arms, seeds=seeds, cells=cells, **changes)))


def test_seeds_with_the_same_points_are_averaged_there():
    mean = mean_curve([[(0, 1.0), (1, 2.0)], [(0, 3.0), (1, 6.0)]])
    assert (mean.x, mean.y, mean.seeds) == ([0, 1], [2, 4], 2)
    assert mean.error == pytest.approx([1, 2])  # |difference| / 2


def test_seeds_with_other_points_are_met_between_them_within_the_range_they_share():
    mean = mean_curve([[(0, 0.0), (4, 4.0)], [(1, 10.0), (3, 10.0), (9, 0.0)]])
    assert mean.x == [1, 3, 4]
    assert mean.y == pytest.approx([5.5, 6.5, (4 + 10 - 10 / 6) / 2], rel=1e-5)


def test_a_gap_of_one_seed_is_a_gap_of_the_mean():
    mean = mean_curve([[(0, 1.0), (1, NAN), (2, 1.0), (3, 1.0)], [(0, 3.0), (1.5, 3.0), (2, 3.0), (3, 3.0)]])
    assert mean.x == [0, 1, 1.5, 2, 3]
    assert mean.y == [2, None, None, 2, 2]
    assert mean.error[1] is None


def test_one_seed_has_a_mean_and_no_error():
    mean = mean_curve([[(0, 1.0), (1, 2.0)], []])
    assert (mean.y, mean.error, mean.seeds) == ([1, 2], [None, None], 1)


def test_seeds_that_share_no_range_have_no_mean(make_study):
    assert mean_curve([[(0, 1.0), (1, 1.0)], [(2, 1.0), (3, 1.0)]]) is None
    assert mean_curve([]) is None
    curves = {"a": [[[0, 1], [1, 1]], [[2, 1], [3, 1]]], "b": [[[0, 1], [1, 1]]] * 2}
    figure = figure_of(make_study, curves)
    assert "share no range have no mean: a." in figure.caption
    assert [row[0] for row in figure.tables["reward"][1:]] == ["b", "b"]


def test_many_points_become_two_hundred_even_steps():
    mean = mean_curve([[(x + shift, float(x)) for x in range(150)] for shift in (0, 0.5)])
    assert len(mean.x) == 200
    assert (mean.x[0], mean.x[-1]) == (0.5, 149)


def test_every_curve_is_a_view_with_all_arms_and_their_bands(make_study):
    data = read_study(make_study())
    figure = curve_figure(data)
    assert list(figure.views) == ["reward", "ess"]
    traces = figure.views["reward"]["data"]
    assert [t["name"] for t in traces if "fill" not in t] == data.arms
    assert [t["fillcolor"] for t in traces if "fill" in t] == ["$arm0", "$arm1", "$arm2"]
    assert "one standard error" in figure.caption
    title = figure.views["reward"]["layout"]["xaxis"]["title"]["text"]
    assert title == "forward TFLOPs"
    line = next(t for t in traces if t.get("name") == "eggroll")
    assert max(line["x"]) == pytest.approx(max(row[1] for row in figure.tables["reward"][1:]) / 1e12)


def test_the_axis_is_the_studys_own(make_study):
    curves = {"a": [[[1, 1], [2000, 1]]]}
    figure = figure_of(make_study, curves, ("a",), axis="evaluations")
    layout = figure.views["reward"]["layout"]
    assert layout["xaxis"]["title"]["text"] == "evaluations"
    assert figure.views["reward"]["data"][-1]["x"] == [1, 2000]


def test_damaged_and_empty_points_are_left_out(make_study):
    curves = {"a": [[[0, 1], [None, 5], "x", [1], [1, None], [2, 3]], []], "b": [[[0, None]], None]}
    figure = figure_of(make_study, curves)
    (line,) = (t for t in figure.views["reward"]["data"] if "fill" not in t)
    assert line["name"] == "a (1 of 2 seeds)"
    assert line["y"] == [1, None, 3]


def test_without_curves_there_is_no_figure(make_study):
    record = make_record()
    for cell in record["cells"]:
        del cell["curves"]
    assert curve_figure(read_study(make_study(record))) is None
    assert curve_figure(read_study(make_study(cells=[]))) is None
