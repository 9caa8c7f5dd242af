import copy
import json
import re
from itertools import pairwise

import pytest
from fabricated_run import ADAPTER, CONFIG, RECORD, RESULT, entry
from page_parts import browse, downloads, needs_chromium, parse

from evolora.errors import RunError
from evolora.report import write_report
from evolora.report.recipes import recipes
from evolora.report.run_data import read_run
from evolora.report.tables import fact_table, samples, step_table


def page_of(folder):
    return parse(write_report(folder))


def test_the_page_asks_nothing_from_outside(make_run):
    page = page_of(make_run())
    for element in page.elements:
        for name in ("src", "href", "srcset", "data", "poster", "action"):
            value = element.get(name)
            assert value is None or value.startswith("#") or value == "data:,", element
    assert not [e for e in page.all("script") if "src" in e]
    styles = "".join(e["text"] for e in page.all("style"))
    assert "url(" not in styles
    assert "@import" not in styles
    policy = next(e for e in page.all("meta") if e.get("http-equiv") == "Content-Security-Policy")
    assert policy["content"].startswith("default-src 'none'")


def test_the_verdict_comes_first_and_names_the_page(make_run):
    page = page_of(make_run())
    assert page.all("title")[0]["text"] == "continents: The adapter helped"
    assert page.all("h1")[0]["text"] == "The adapter helped"
    main = page.all("main")[0]["text"]
    assert main.index("+34.0 points (95 % interval 26.0 to 42.0)") < main.index("Horizontal axis")


def test_the_page_can_be_read_without_seeing_it(make_run):
    page = page_of(make_run())
    assert page.all("html")[0]["lang"] == "en"
    levels = [int(e["tag"][1]) for e in page.elements if re.fullmatch(r"h\d", e["tag"])]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert len(page.all("table")) == len(page.all("caption")) == 5
    plots = [e for e in page.all("div") if e.get("class") == "plot"]
    assert len(plots) == len(page.all("figcaption")) == 3
    assert all(e["role"] == "img" and len(e["aria-label"]) > 40 for e in plots)
    assert all(e["tabindex"] == "0" and e["aria-label"] for e in page.elements if e.get("role") == "region")
    ids = {e["id"] for e in page.elements if "id" in e}
    assert all(e["href"][1:] in ids for e in page.all("a"))
    assert all(e["aria-labelledby"] in ids for e in page.all("section"))


def test_answers_are_marked_in_words_and_changed_ones_come_first(make_run):
    shown, more = samples(read_run(make_run()))
    countries = [re.search(r"is (\w+)", sample["prompt"])[1] for sample in shown]
    assert countries == ["Kenya", "Chad", "Malta", "Peru", "Laos"]
    assert [sample["change"] for sample in shown] == ["now right", "now right", "now wrong", "", ""]
    assert more == 0
    page = page_of(make_run())
    answers = [" ".join(e["text"].split()) for e in page.all("td") if e.get("class", "").startswith("answer")]
    assert answers[:2] == ["✗ wrong The continent of Africa", "✓ right Africa"]
    assert "✗ wrong (empty)" in answers


def test_every_text_of_the_user_is_escaped(make_run):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7*7 }}"
    result = copy.deepcopy(RESULT)
    result["samples"] = [dict.fromkeys(("prompt", "answer", "base", "adapted"), evil)]
    result.update(dict.fromkeys(("task", "method", "reward", "stopped", "adapter"), evil))
    for key in ("base", "adapted"):
        result[key]["families"] = {evil: {"accuracy": 0.5}, "x": {"accuracy": 0.5}}
    journal = [{**entry(step), evil: evil} for step in range(1, 4)]
    folder = make_run(
        status=f"failed: {evil}",
        result=result,
        journal=journal,
        config={evil: evil},
        record={**RECORD, "argv": [evil], evil: {evil: evil}},
        adapter={**ADAPTER, "base_model_name_or_path": evil},
    )
    page = page_of(folder)
    assert len(page.all("script")) == 3
    assert page.all("img") == []
    assert not any("onerror" in e for e in page.elements)
    assert "49" not in page.all("h1")[0]["text"]
    cells = [e["text"].strip() for e in page.all("td")]
    assert cells.count(evil) >= 4
    data = json.loads(next(e for e in page.all("script") if e.get("id") == "figures")["text"])
    assert list(data) == ["reward", "comparison", "norms"]


@pytest.mark.parametrize("status", ["running", "stopped: interrupted", "failed: boom"])
@pytest.mark.parametrize("steps", [0, 1, 12])
def test_an_unfinished_run_has_a_page_that_says_so(make_run, status, steps):
    page = page_of(make_run(status=status, steps=steps, result=None, adapter=None))
    text = page.all("main")[0]["text"]
    assert "has not been tested" in text
    assert "has left no adapter" in text
    assert ("No step is recorded yet." in text) == (steps == 0)
    assert len([e for e in page.all("div") if e.get("class") == "plot"]) == (2 if steps else 0)


def test_a_folder_with_nothing_but_its_record_has_a_page(make_run):
    folder = make_run(steps=0, result=None, adapter=None, config=None, record={})
    (folder / "journal.jsonl").unlink()
    assert "no configuration" in page_of(folder).all("main")[0]["text"]


def test_steps_without_a_value_leave_the_page_whole(make_run):
    journal = [entry(step) for step in range(1, 13)]
    for key in journal[3]:
        if key != "step":
            journal[3][key] = None
    page = page_of(make_run(journal=journal))
    assert "1 of 12" in page.all("figcaption")[0]["text"]


def test_a_torn_journal_and_a_damaged_configuration_are_read_as_far_as_they_go(make_run):
    folder = make_run(steps=3)
    with open(folder / "journal.jsonl", "a") as file:
        file.write('{"step": 4, "rew')
    (folder / "config.yaml").write_text("a: [1\nb: &")
    page = page_of(folder)
    assert "a: [1\nb: &" in page.all("code")[-1]["text"]
    assert read_run(folder).journal[-1]["step"] == 3


def test_damaged_or_missing_runs_are_one_helpful_line_and_leave_no_page(make_run, tmp_path):
    folder = make_run()
    (folder / "result.json").write_text("{")
    with pytest.raises(RunError, match=r"result\.json"):
        write_report(folder)
    assert not (folder / "report.html").exists()
    with pytest.raises(RunError, match="no run folder"):
        write_report(tmp_path)
    with pytest.raises(RunError, match="does not exist"):
        write_report(tmp_path / "none")


def test_the_page_is_replaced_whole(make_run):
    folder = make_run()
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first
    assert [f.name for f in folder.iterdir() if "tmp" in f.name] == []


def test_long_journals_are_thinned_and_end_with_the_last_step():
    _, rows, stride = step_table([{"step": step} for step in range(1, 1001)])
    assert stride == 4
    assert rows[0] == ["1"]
    assert rows[-1] == ["1,000"]
    assert len(rows) <= 301


def test_long_answers_are_cut_and_many_are_counted(make_run):
    many = [
        {"prompt": "p" * 5000, "answer": "a", "base": [{"role": "user", "content": "hi"}], "adapted": 3}
    ] * 100
    shown, more = samples(read_run(make_run(result={**RESULT, "samples": many})))
    assert (len(shown), more) == (60, 40)
    assert shown[0]["prompt"].startswith("(5,000 characters) … ppp")
    assert shown[0]["base"] == "user: hi"
    assert shown[0]["base_mark"] == ""


def test_facts_are_flat_and_in_human_units():
    facts = dict(fact_table(RECORD))
    assert facts["command"] == "evolora adapt --task 'a task' --out runs/continents"
    assert facts["memory"] == "15.4 GiB"
    assert facts["versions: torch"] == "2.13.0"
    assert facts["git: changed"] == "no"
    assert facts["base: fingerprint"] == "3f9c2a71d0e54b88"
    assert "status" not in facts


def test_the_recipes_are_python_with_the_adapters_own_base_and_a_rank_that_vllm_takes(make_run):
    config = {**CONFIG, "model": "theirs", "stop": "\n"}
    (_, peft), (_, vllm) = recipes(
        read_run(make_run(adapter={**ADAPTER, "base_model_name_or_path": "o'x\"y"}, config=config))
    )
    compile(peft, "peft", "exec")
    compile(vllm, "vllm", "exec")
    assert repr("o'x\"y") in peft
    assert "'runs/continents/adapter'" in peft
    assert "max_lora_rank=32" in vllm
    assert r"stop_strings=['\n']" in peft
    assert r"stop=['\n']" in vllm


def test_the_recipe_for_the_bundled_model_takes_its_own_weights(make_run):
    (_, peft), _ = recipes(read_run(make_run()))
    compile(peft, "peft", "exec")
    assert "load_base('smollm2-135m')" in peft
    assert "stop_strings" not in peft


def test_nobody_is_told_to_serve_dora_with_vllm(make_run):
    found = recipes(read_run(make_run(adapter={**ADAPTER, "use_dora": True})))
    assert [title for title, _ in found] == ["With transformers and PEFT"]


@needs_chromium
@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_a_browser_draws_the_figures_without_complaint(make_run, tmp_path, scheme):
    drawn = browse(write_report(make_run()), tmp_path, dark=scheme == "dark")
    assert drawn.count('class="main-svg"') >= 3
    color = "rgb(127, 181, 236)" if scheme == "dark" else "rgb(27, 94, 158)"
    assert f"stroke: {color}" in drawn


@needs_chromium
def test_every_figure_can_be_saved_as_png_svg_and_csv(make_run, tmp_path):
    saved = downloads(write_report(make_run()), tmp_path, dark=True)
    names = {f"continents-{key}" for key in ("reward-steps", "comparison", "norms")}
    assert set(saved) == {f"{name}.{kind}" for name in names for kind in ("png", "svg", "csv")}
    for name, content in saved.items():
        kind = name[-3:]
        start = {"png": b"\x89PNG", "svg": b"<svg ", "csv": b"\xef\xbb\xbfseries,"}[kind]
        assert content.startswith(start), name
    paper = saved["continents-reward-steps.svg"].decode()
    assert "rgb(27, 94, 158)" in paper
    assert "rgb(127, 181, 236)" not in paper
    rows = saved["continents-reward-steps.csv"].decode("utf-8-sig").splitlines()
    assert rows[0] == "series,label,step,reward,low,high"
    assert sum(row.startswith("best member,") for row in rows) == 30


def test_graded_rewards_are_numbers_not_right_or_wrong(make_run):
    result = copy.deepcopy(RESULT)
    result["reward"] = "logprob"
    for sample in result["samples"]:
        sample["base_correct"], sample["adapted_correct"] = -6.8, -5.1
    shown, _ = samples(read_run(make_run(result=result)))
    assert {sample["change"] for sample in shown} == {"higher"}
    assert all(sample["adapted_mark"].endswith("5.1") for sample in shown)
