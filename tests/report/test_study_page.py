import csv
import io
import json
import re
from itertools import pairwise

import pytest
from fabricated_study import ARMS, FINDINGS, make_record
from page_parts import Page, browse, downloads, needs_chromium, parse

from evolora.report import write_study_report

SORT = """
const heads = () => [...document.querySelectorAll("#cells ~ .scroll thead th")];
const seen = [];
const press = (column) => {
  heads()[column].querySelector("button").focus();
  document.activeElement.click();
  const rows = [...document.querySelectorAll("#cells ~ .scroll tbody tr")];
  const sorted = heads().map((head) => head.getAttribute("aria-sort"));
  seen.push([sorted, rows.map((row) => row.cells[column].textContent)]);
};
press(3); press(3); press(0); press(1);
const told = document.createElement("script");
told.id = "seen";
told.type = "application/json";
told.textContent = JSON.stringify(seen);
document.body.append(told);
"""


def page_of(folder):
    return parse(write_study_report(folder))


def plots(page):
    return [e for e in page.all("div") if e.get("class") == "plot"]


def test_the_verdict_comes_first_and_names_the_page(make_study):
    page = page_of(make_study())
    assert page.all("title")[0]["text"] == "toy: 2 of 3 claims hold"
    assert page.all("h1")[0]["text"] == "2 of 3 claims hold"
    main = page.all("main")[0]["text"]
    order = [
        "0.41 (eggroll) against 0.29",
        "Would be falsified by",
        "Mean ± standard deviation",
        "forward work",
    ]
    places = [main.index(words) for words in order]
    assert places == sorted(places)
    assert "The plan 3f9c2a71d0e54b88 was laid down before the first cell." in main


def test_the_page_asks_nothing_from_outside(make_study):
    page = page_of(make_study())
    for element in page.elements:
        for name in ("src", "href", "srcset", "data", "poster", "action"):
            value = element.get(name)
            assert value is None or value.startswith("#") or value == "data:,", element
    policy = next(e for e in page.all("meta") if e.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"].startswith("default-src 'none'")


def test_the_page_can_be_read_without_seeing_it(make_study):
    page = page_of(make_study())
    levels = [int(e["tag"][1]) for e in page.elements if re.fullmatch(r"h\d", e["tag"])]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert len(page.all("table")) == len(page.all("caption")) == 6
    assert len(plots(page)) == len(page.all("figcaption")) == 5
    assert all(e["role"] == "img" and len(e["aria-label"]) > 40 for e in plots(page))
    ids = [e["id"] for e in page.elements if "id" in e]
    assert len(set(ids)) == len(ids)
    assert all(e["href"][1:] in ids for e in page.all("a"))
    assert all(e["aria-labelledby"] in ids for e in page.all("section"))
    assert all(len(e["aria-label"]) > 10 for e in page.all("button"))


def test_every_text_of_the_user_is_escaped(make_study):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7*7 }}<b>"
    record = make_record(arms=(evil, "b"))
    record.update(study=evil, preset=evil, axis=evil, measures={evil: {"words": evil}})
    record["plan"].update(digest=evil, settings={evil: {evil: [evil]}})
    record["plan"]["claims"] = [dict.fromkeys(("name", "says", "falsified_by", "source"), evil)]
    record["findings"] = [{**FINDINGS[0], "claim": evil, "words": evil, "wins": evil}]
    record["chosen"] = {evil: {evil: evil}}
    record["provenance"] = {evil: evil}
    for cell in record["cells"]:
        cell.update({evil: 0.5, "curves": {evil: [[0, 1], [1, 2]]}, "ledger": {evil: 1}})
    page = page_of(make_study(record))
    assert len(page.all("script")) == 4
    assert page.all("img") == []
    assert not any("onerror" in e for e in page.elements)
    assert [e["text"] for e in page.all("dd")].count(evil) >= 5
    data = json.loads(next(e for e in page.all("script") if e.get("id") == "figures")["text"])
    assert list(data) == ["claims", "measure-1", "curves"]
    assert [row[0] for row in csv.reader(io.StringIO(data["measure-1"]["csv"]["all"]))][1] == evil
    labels = data["measure-1"]["views"]["all"]["data"][-1]["text"]
    assert "<" not in "".join(labels)


@pytest.mark.parametrize("arms", [("only",), ARMS, tuple(f"arm {i}" for i in range(10))], ids=len)
def test_any_number_of_arms_has_a_page(make_study, arms):
    page = page_of(make_study(arms=arms))
    assert len(plots(page)) == 5
    heads = [e["text"] for e in page.all("th") if e.get("scope") == "row"]
    assert all(heads.count(arm) == 3 + 8 for arm in arms)  # arms, settings, spending; cells


def test_an_empty_record_has_a_page_that_says_so(make_study):
    page = page_of(make_study({"study": "x", "preset": "y", "plan": {}, "cells": [], "findings": []}))
    text = page.all("main")[0]["text"]
    for words in ("No claim was judged", "states no claims", "no cells", "no curves", "no ledger", "no arms"):
        assert words in text
    assert plots(page) == []


def test_a_record_of_nothing_but_nulls_has_a_page(make_study):
    record = make_record()
    for cell in record["cells"]:
        cell.update(reward=None, forgotten=None, norm=None, validation=None)
        cell.update(curves={"reward": [[1, None]]}, ledger={"seconds": None})
    record["findings"] = [{**found, "effect": None, "ci": [None, None], "p": None} for found in FINDINGS]
    assert plots(page_of(make_study(record))) == []


def test_the_page_is_replaced_whole(make_study):
    folder = make_study()
    first = write_study_report(folder).read_bytes()
    assert write_study_report(folder).read_bytes() == first
    assert sorted(file.name for file in folder.iterdir()) == ["record.json", "report.html"]


@needs_chromium
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_a_browser_draws_the_figures_without_complaint(make_study, tmp_path, scheme):
    drawn = browse(write_study_report(make_study()), tmp_path, dark=scheme == "dark")
    assert drawn.count('class="main-svg"') >= 5
    color = "rgb(224, 167, 101)" if scheme == "dark" else "rgb(163, 97, 26)"
    assert f"stroke: {color}" in drawn


@needs_chromium
def test_hostile_names_are_shown_as_they_are(make_study, tmp_path):
    evil = '<b>"$x"&amp;</b>'
    drawn = browse(write_study_report(make_study(arms=(evil, "$y"))), tmp_path)
    labels = [e["text"] for e in Page(drawn).all("text")]
    assert labels.count(evil) == 4  # three measures and the legend of the curves
    assert labels.count("$y") == 4


@needs_chromium
def test_tables_are_sorted_by_their_headings_and_gaps_stay_last(make_study, tmp_path):
    record = make_record()
    values = [12, None, -3, 1e-7, 2500]
    record["cells"] = [{"arm": f"arm {i}", "seed": 30 - i, "v": 0, "reward": v} for i, v in enumerate(values)]
    drawn = browse(write_study_report(make_study(record)), tmp_path, script=SORT)
    up, down, names, seeds = json.loads(
        next(e["text"] for e in Page(drawn).all("script") if e.get("id") == "seen")
    )
    assert up == [["none", "none", "none", "ascending"], ["−3", "1e-07", "12", "2,500", "–"]]  # noqa: RUF001
    assert down == [["none", "none", "none", "descending"], ["2,500", "12", "1e-07", "−3", "–"]]  # noqa: RUF001
    assert names == [["ascending", "none", "none", "none"], [f"arm {i}" for i in range(5)]]
    assert seeds[1] == ["26", "27", "28", "29", "30"]


@needs_chromium
def test_every_figure_can_be_saved_as_png_svg_and_csv(make_study, tmp_path):
    saved = downloads(write_study_report(make_study()), tmp_path)
    keys = ("claims", "measure-1", "measure-2", "measure-3", "curves-reward")
    assert set(saved) == {f"toy-{key}.{kind}" for key in keys for kind in ("png", "svg", "csv")}
    assert all(saved[f"toy-{key}.png"].startswith(b"\x89PNG") for key in keys)
    assert all(saved[f"toy-{key}.svg"].startswith(b"<svg ") for key in keys)
    rows = list(csv.DictReader(io.StringIO(saved["toy-measure-1.csv"].decode("utf-8-sig"))))
    assert [float(row["reward"]) for row in rows if row["arm"] == "eggroll"] == [
        cell["reward"] for cell in make_record()["cells"] if cell["arm"] == "eggroll"
    ]
