import json
import re

import plotly.graph_objects as go
import pytest
from fabricated_study import FINDINGS, make_record

from evolora.report.study_claims import claim_figure
from evolora.report.study_curves import curve_figure
from evolora.report.study_data import read_study
from evolora.report.study_measures import measure_figures
from evolora.report.study_verdict import judged


@pytest.fixture
def study(make_study):
    return lambda **changes: read_study(make_study(**changes))


def claims_of(data):
    return claim_figure(judged(data))


def dots(figure, arm):
    return next(t for t in figure.views["all"]["data"] if t.get("name") == arm)


@pytest.mark.parametrize("arms", [("only",), ("a", "b"), tuple(f"arm {i}" for i in range(23))])
def test_plotly_knows_every_property_and_all_is_strict_json(study, arms):
    data = study(arms=arms)
    for figure in (claims_of(data), *measure_figures(data), curve_figure(data)):
        for view in figure.views.values():
            text = re.sub(r'"\$[a-z]+\d?"', '"#123456"', json.dumps(view, allow_nan=False))
            assert "$" not in text
            go.Figure(json.loads(text))


def test_every_claim_has_a_panel_with_its_interval_and_zero_in_sight(study):
    figure = claims_of(study())
    view = figure.views["all"]
    for place, found in enumerate(FINDINGS, 1):
        trace = view["data"][place - 1]
        axis = view["layout"][f"xaxis{place if place > 1 else ''}"]
        low, high = axis["range"]
        assert trace["x"] == [found["effect"]]
        assert trace["x"][0] - trace["error_x"]["arrayminus"][0] == pytest.approx(found["ci"][0])
        assert trace["x"][0] + trace["error_x"]["array"][0] == pytest.approx(found["ci"][1])
        assert low < min(0, found["ci"][0])
        assert high > max(0, found["ci"][1])
        assert axis["zeroline"]
    assert [t["marker"]["symbol"] for t in view["data"]] == ["circle-open", "diamond", "diamond"]


def test_panels_do_not_overlap(study):
    layout = claims_of(study()).views["all"]["layout"]
    domains = [layout[key]["domain"] for key in ("yaxis", "yaxis2", "yaxis3")]
    assert domains[0][0] > domains[1][1] > domains[1][0] > domains[2][1]
    assert domains[2][0] > 0
    assert domains[0][1] < 1


def test_an_effect_that_came_to_nothing_is_not_drawn_but_told(study):
    lost = {**FINDINGS[0], "effect": None, "ci": [None, None]}
    figure = claims_of(study(findings=[lost, {**FINDINGS[1], "ci": [None, 0.3]}]))
    (trace,) = figure.views["all"]["data"]
    assert trace["error_x"]["array"] == [0]
    assert "2 of 3" in figure.caption
    assert figure.tables["all"][1][2] is None
    assert claims_of(study(findings=[])) is None


def test_an_effect_of_zero_has_a_scale(study):
    figure = claims_of(study(findings=[{**FINDINGS[0], "effect": 0, "ci": [0, 0]}]))
    low, high = figure.views["all"]["layout"]["xaxis"]["range"]
    assert low < 0 < high


def test_a_measure_has_one_dot_a_seed_its_mean_and_a_line_a_seed(study):
    data = study()
    figure = measure_figures(data)[0]
    traces = figure.views["all"]["data"]
    lines = [t for t in traces if t["mode"] == "lines"]
    assert len(lines) == 8
    assert lines[3]["x"] == [data.values(arm, "reward")[3] for arm in data.arms]
    points, mean = (t for t in traces if t.get("name") == "eggroll")
    assert points["x"] == data.values("eggroll", "reward")
    assert mean["x"] == [pytest.approx(sum(points["x"]) / 8)]
    assert points["text"][0] == "eggroll, seed 20"
    assert figure.views["all"]["layout"]["yaxis"]["ticktext"] == ["replicator", "eggroll", "adamw"]
    assert points["y"] == [1] * 8
    assert "higher is better" in figure.views["all"]["layout"]["xaxis"]["title"]["text"]
    assert figure.tables["all"][:2] == [["arm", "seed", "reward"], ["adamw", 20, points_of(data, "adamw")]]


def points_of(data, arm):
    return data.values(arm, "reward")[0]


def test_values_that_came_to_nothing_are_gaps_and_counted(study):
    record = make_record()
    for place in (0, 4):
        record["cells"][place]["reward"] = None
    data = study(record=record)
    figure = measure_figures(data)[0]
    first = figure.views["all"]["data"][0]
    assert first["x"][0] is None
    assert first["connectgaps"] is False
    assert len(dots(figure, "adamw")["x"]) == 7
    assert "2 of 24 cells have no value" in figure.caption


def test_a_measure_without_any_value_is_not_drawn(study):
    record = make_record()
    for cell in record["cells"]:
        cell["norm"] = None
    assert [figure.key for figure in measure_figures(study(record=record))] == ["measure-1", "measure-2"]
    assert measure_figures(study(cells=[])) == []


def test_one_arm_has_no_lines_to_another(study):
    traces = measure_figures(study(arms=("only",)))[0].views["all"]["data"]
    assert all(t["mode"] == "markers" for t in traces)


def test_markup_and_long_names_stay_text(study):
    name = "<b>x</b>&" + "y" * 40
    figure = measure_figures(study(arms=(name, "z")))[0]
    shown = figure.views["all"]["layout"]["yaxis"]["ticktext"][1]
    assert shown.startswith("&lt;b&gt;x&lt;/b&gt;&amp;y")
    assert shown.endswith("…")
    assert figure.tables["all"][1][0] == name
