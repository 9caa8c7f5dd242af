import json

import plotly.graph_objects as go
import pytest
from fabricated_run import RESULT, entry

from evolora.report.comparison import comparison_figure, comparison_rows, comparison_table
from evolora.report.figures import norm_figure, reward_figure
from evolora.report.run_data import read_run


@pytest.fixture
def journal():
    return [entry(step) for step in range(1, 13)]


def trace(figure, name, view="steps"):
    return next(t for t in figure.views[view]["data"] if t["name"] == name)


def figures(journal, make_run):
    return [
        reward_figure(journal),
        norm_figure(journal),
        comparison_figure(comparison_rows(read_run(make_run())), True),
    ]


def test_plotly_knows_every_property_and_all_is_strict_json(journal, make_run):
    for figure in figures(journal, make_run):
        for view in figure.views.values():
            text = json.dumps(view, allow_nan=False)
            for name in ("adapted", "base", "best", "band"):
                text = text.replace(f'"${name}"', '"#123456"')
            assert "$" not in text
            go.Figure(json.loads(text))


def test_the_curve_stands_over_steps_and_over_flops(journal):
    figure = reward_figure(journal)
    mean = [line["reward_mean"] for line in journal]
    assert trace(figure, "mean of the members")["y"] == mean
    assert trace(figure, "mean of the members")["x"] == list(range(1, 13))
    flops = trace(figure, "mean of the members", "forward FLOPs")["x"]
    assert flops == pytest.approx([3.1 * step for step in range(1, 13)])
    assert "TFLOPs" in figure.views["forward FLOPs"]["layout"]["xaxis"]["title"]["text"]


def test_the_band_is_a_closed_outline_for_each_stretch_between_gaps(journal):
    for step in (4, 6):
        journal[step]["reward_mean"] = None
    band = trace(reward_figure(journal), "mean ± spread")
    stretches = [[]]
    for x, y in zip(band["x"], band["y"], strict=True):
        if x is None:
            stretches.append([])
        else:
            stretches[-1].append((x, y))
    first, second, rest = stretches
    assert rest == []
    assert [x for x, _ in first] == [1, 2, 3, 4, 4, 3, 2, 1]
    assert [x for x, _ in second] == [8, 9, 10, 11, 12, 12, 11, 10, 9, 8]
    for outline in (first, second):
        for (x, high), (_, low) in zip(outline[: len(outline) // 2], outline[::-1], strict=False):
            line = journal[x - 1]
            assert (high + low) / 2 == pytest.approx(line["reward_mean"])
            assert (high - low) / 2 == pytest.approx(line["reward_std"])


def test_a_gap_is_not_bridged_and_is_told(journal):
    journal[4]["reward_mean"] = None
    figure = reward_figure(journal)
    line = trace(figure, "mean of the members")
    assert line["y"][4] is None
    assert line["connectgaps"] is False
    assert "1 of 12" in figure.caption


def test_what_was_not_recorded_is_not_drawn(journal):
    assert reward_figure([]) is None
    assert norm_figure([]) is None
    assert comparison_figure([], True) is None
    assert reward_figure([{"step": 1, "reward_mean": None}]) is None
    bare = reward_figure([{"step": 1, "reward_mean": 0.5}, {"step": 2, "reward_mean": 0.6}])
    assert list(bare.views) == ["steps"]
    assert [t["name"] for t in bare.views["steps"]["data"]] == ["mean of the members"]


def test_intervals_reach_from_the_lower_to_the_upper_end(make_run):
    rows = comparison_rows(read_run(make_run()))
    assert [row["name"] for row in rows] == ["all test prompts", "Africa", "Asia", "Europe"]
    adapted = comparison_figure(rows, True).views["all"]["data"][1]
    bars = adapted["error_x"]
    for i, part in enumerate([RESULT["adapted"], *RESULT["adapted"]["families"].values()]):
        assert adapted["x"][i] - bars["arrayminus"][i] == pytest.approx(100 * part["ci"][0])
        assert adapted["x"][i] + bars["array"][i] == pytest.approx(100 * part["ci"][1])


def test_the_table_has_both_shares_their_intervals_and_the_change(make_run):
    table = comparison_table(comparison_rows(read_run(make_run())), True)
    assert table[0] == ["all test prompts", "150", "7.3 % [1.3, 15.3]", "41.3 % [35.3, 49.3]", "+34.0"]


def test_one_family_alone_is_not_told_twice(make_run):
    one = {key: {**RESULT[key], "families": {"default": {"accuracy": 0.5}}} for key in ("base", "adapted")}
    assert len(comparison_rows(read_run(make_run(result={**RESULT, **one})))) == 1


def test_a_family_that_lacks_a_value_leaves_the_others_in_place(make_run):
    families = {"a": {"accuracy": 0.5, "ci": [0.4, 0.6]}, "b": {"accuracy": None, "ci": None}}
    parts = {key: {**RESULT[key], "families": families} for key in ("base", "adapted")}
    rows = comparison_rows(read_run(make_run(result={**RESULT, **parts})))
    data = comparison_figure(rows, True).views["all"]["data"]
    assert [len(t["x"]) for t in data] == [2, 2]
    assert comparison_table(rows, True)[2][2:] == ["–", "–", "–"]  # noqa: RUF001


def test_markup_in_a_family_name_stays_text_in_the_labels(make_run):
    families = {"<b>x</b>&": {"accuracy": 0.5}, "y": {"accuracy": 0.5}}
    parts = {key: {**RESULT[key], "families": families} for key in ("base", "adapted")}
    figure = comparison_figure(comparison_rows(read_run(make_run(result={**RESULT, **parts}))), True)
    assert "&lt;b&gt;x&lt;/b&gt;&amp;" in figure.views["all"]["layout"]["yaxis"]["ticktext"]
