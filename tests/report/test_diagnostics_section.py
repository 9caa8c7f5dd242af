"""The section "Diagnostics": what is there is drawn, what is not stays away."""

import copy
import json

import plotly.graph_objects as go
import pytest
from fabricated_run import RESULT, entry
from test_page import page_of

from evolora.report.diagnostic_table import absent_table, diagnostic_table
from evolora.report.diagnostics import diagnostic_figures
from evolora.report.figures import norm_figure
from evolora.report.run_data import read_run

MODULES = [f"model.layers.{layer}.{name}" for layer in (0, 1) for name in ("self_attn.q_proj", "mlp.up_proj")]
SPECTRUM = {"norm": 1.0, "stable_rank": 3.0, "effective_rank": 9.0, "energy": {"1": 0.2, "16": 0.9}}
SPARSE = {"below": {"0.01": 0.75}, "swallowed": 0.6, "relative": 0.02, "entries": 10}
KL = {"task": "new", "to_base": 0.3, "ci": [0.2, 0.5], "from_base": 0.4, "tokens": 90, "prompts": 8}
DIFFERENCE = {"value": -0.02, "ci": [-0.05, 0.01], "p": 0.4}
FOUND = {
    "walk": {"norm": 2.0, "length": 1.9, "ratio": 1.05, "modules": dict.fromkeys(MODULES, 1.05)},
    "spectra": {"modules": dict.fromkeys(MODULES, SPECTRUM), "whole": SPECTRUM, "export_rank": 8},
    "sparsity": {"modules": dict.fromkeys(MODULES, SPARSE), "whole": SPARSE},
    "decomposition": {
        "modules": {m: {"magnitude": 0.1 * i, "direction": 0.2 * i} for i, m in enumerate(MODULES)},
        "slope": 0.5,
        "correlation": 1.0,
    },
    "gradient": {"cosine": 0.004, "expected": 0.005},
    "path": {
        "positions": [0, 0.5, 1], "rewards": [0.1, 0.2, 0.4], "barrier": 0.05, "first": "base", "prompts": 9,
    },
    "divergence": {"on_task": KL, "off_task": {**KL, "task": "old", "to_base": 0.02, "ci": [0.01, 0.03]}},
    "retention": {
        "task": "old",
        "reward": "exact",
        "before": {"accuracy": 0.5, "ci": [0.4, 0.6], "n": 80},
        "after": {"accuracy": 0.48, "ci": [0.38, 0.58], "n": 80},
        "difference": DIFFERENCE,
    },
    "not_applicable": {"population": "eggroll keeps no population from step to step"},
    "ledger": {"seconds": 12.0},
}  # fmt: skip
KEYS = ["modules", "decomposition", "path", "divergence", "retention"]


@pytest.fixture
def diagnosed(make_run):
    def make(found=FOUND, **parts):
        folder = make_run(**parts)
        (folder / "diagnostics.json").write_text(json.dumps(found))
        return folder

    return make


def drawn(folder):
    return {figure.key: figure for figure in diagnostic_figures(read_run(folder))}


def test_all_that_is_there_is_drawn_and_plotly_knows_every_property(diagnosed):
    figures = drawn(diagnosed())
    assert list(figures) == KEYS
    assert list(figures["modules"].views) == ["effective rank", "stable rank", "relative change", "drift"]
    for figure in figures.values():
        for view in figure.views.values():
            text = json.dumps(view, allow_nan=False)
            for name in ("adapted", "base", "best"):
                text = text.replace(f'"${name}"', '"#123456"')
            assert "$" not in text
            go.Figure(json.loads(text))


def test_a_run_without_diagnostics_has_no_such_section(make_run):
    page = page_of(make_run())
    assert not any(element.get("id") == "diagnostics" for element in page.elements)
    assert "Diagnostics" not in page.all("nav")[0]["text"]


@pytest.mark.parametrize("gone", KEYS)
def test_what_is_not_there_stays_away(diagnosed, gone):
    sources = {"modules": ("walk", "spectra", "sparsity")}.get(gone, (gone,))
    found = {key: value for key, value in FOUND.items() if key not in sources}
    folder = diagnosed(found)
    assert list(drawn(folder)) == [key for key in KEYS if key != gone]
    page_of(folder)


def test_numbers_that_do_not_exist_are_left_out(diagnosed):
    found = copy.deepcopy(FOUND)
    found["path"]["rewards"][1] = None
    found["decomposition"]["slope"] = None
    found["divergence"]["off_task"]["to_base"] = None
    found["retention"]["after"]["accuracy"] = None
    figures = drawn(diagnosed(found))
    assert figures["path"].views["all"]["data"][0]["y"] == [0.1, None, 0.4]
    assert len(figures["divergence"].views["all"]["data"][0]["x"]) == 1
    assert "Slope" not in "".join(name for name, _ in diagnostic_table(found))


def test_the_page_has_the_section_with_its_tables_and_captions(diagnosed):
    page = page_of(diagnosed())
    assert any(element.get("href") == "#diagnostics" for element in page.all("a"))
    plots = [element for element in page.all("div") if element.get("class") == "plot"]
    assert [p["id"] for p in plots][3:] == [f"plot-{key}" for key in KEYS]
    assert all(len(p["aria-label"]) > 40 for p in plots)
    text = page.all("main")[0]["text"]
    assert "eggroll keeps no population" in text
    assert "old −2.0 points [−5.0, +1.0]" in text  # noqa: RUF001
    assert "What is drawn" in text


def test_bars_points_and_intervals_are_the_numbers(diagnosed):
    figures = drawn(diagnosed())
    assert figures["modules"].views["stable rank"]["data"][0]["y"] == [3.0] * 4
    assert figures["modules"].views["drift"]["layout"]["xaxis"]["ticktext"][-1] == "1.up_proj"
    points = figures["decomposition"].views["all"]["data"][0]
    assert points["x"] == pytest.approx([0, 0.2, 0.4, 0.6])
    dots = figures["divergence"].views["all"]["data"][0]
    for i, part in enumerate((FOUND["divergence"]["on_task"], FOUND["divergence"]["off_task"])):
        assert dots["x"][i] + dots["error_x"]["array"][i] == pytest.approx(part["ci"][1])
        assert dots["x"][i] - dots["error_x"]["arrayminus"][i] == pytest.approx(part["ci"][0])
    before, after = figures["retention"].views["all"]["data"]
    assert (before["x"], after["x"]) == ([50], [48])


def test_diagnostics_of_the_result_do_where_the_file_is_gone(make_run):
    data = read_run(make_run(result={**RESULT, "diagnostics": FOUND}))
    assert absent_table(data) == [("population", "eggroll keeps no population from step to step")]
    assert (
        dict(diagnostic_table(data.diagnostics))["Length against a random walk"] == "1.05 (1 is pure noise)"
    )


def test_a_population_is_drawn_from_the_journal_alone(make_run):
    journal = [{**entry(step), "ess": 8 - step / 2, "diversity": 0.3} for step in range(1, 7)]
    folder = make_run(journal=journal)
    figure = drawn(folder)["population"]
    assert figure.views["steps"]["data"][0]["y"] == [7.5, 7, 6.5, 6, 5.5, 5]
    assert "at least 5" in figure.label
    page = page_of(folder)
    assert any(element.get("id") == "diagnostics" for element in page.elements)


def test_the_distance_stands_beside_the_random_walk():
    journal = [{**entry(step), "walk_ratio": 1.25} for step in range(1, 5)]
    lines = norm_figure(journal).views["steps"]["data"]
    assert [trace["name"] for trace in lines][1] == "random walk of pure noise"
    assert lines[1]["y"] == pytest.approx([line["delta_norm"] / 1.25 for line in journal])
    assert len(norm_figure([entry(1)]).views["steps"]["data"]) == 2


def test_every_text_of_the_user_is_escaped(diagnosed):
    evil = "</script><img src=x onerror=alert(2)>"
    found = copy.deepcopy(FOUND)
    found["retention"]["task"] = found["divergence"]["on_task"]["task"] = found["path"]["first"] = evil
    found["not_applicable"] = {evil: evil}
    for key in ("spectra", "decomposition", "walk", "sparsity"):
        found[key]["modules"] = {evil: next(iter(found[key]["modules"].values()))}
    page = page_of(diagnosed(found))
    assert len(page.all("script")) == 3
    assert page.all("img") == []


def test_damaged_diagnostics_are_one_line(diagnosed):
    from evolora.errors import RunError

    folder = diagnosed()
    (folder / "diagnostics.json").write_text("[1")
    with pytest.raises(RunError, match=r"diagnostics\.json"):
        read_run(folder)
