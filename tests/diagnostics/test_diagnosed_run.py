"""`diagnose` and `retain` as options of a run: what lands in its folder."""

import json

import pytest
import yaml

from evolora.config import AdaptConfig
from evolora.errors import ConfigError, InputError, TaskError
from evolora.job import carry_out
from evolora.report import write_report


def write_task(file, letters, answer):
    rows = [
        {"prompt": f"{a}{b}:", "answer": answer, "split": split}
        for split, some in (("train", letters[:4]), ("validation", letters[4]), ("test", letters[5:]))
        for a in some
        for b in "xy"
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


@pytest.fixture
def config(model_folder, tmp_path):
    return AdaptConfig(
        model=str(model_folder),
        task=write_task(tmp_path / "new.jsonl", "abcdefgh", "e"),
        reward="logprob",
        options={"population": 4, "sigma": 0.05},
        batch=4,
        budget_steps=2,
        diagnose=True,
        retain=write_task(tmp_path / "old.jsonl", "klmnopqr", "f"),
        out=tmp_path / "run",
    )


def test_the_folder_the_result_and_the_page_hold_the_diagnostics(config):
    result = carry_out(config)
    found = json.loads((config.out / "diagnostics.json").read_text())
    assert found == result["diagnostics"]
    assert found == json.loads((config.out / "result.json").read_text())["diagnostics"]
    assert found["retention"]["task"] == config.retain
    assert found["ledger"]["forward_flops"] > 0
    assert result["ledger"]["evaluations"] == 2 * 4 * 4
    page = (config.out / "report.html").read_bytes()
    assert b"plot-retention" in page
    assert write_report(config.out).read_bytes() == page
    saved = yaml.safe_load((config.out / "config.yaml").read_text())
    assert (saved["diagnose"], saved["retain"]) == (True, config.retain)


def test_replacing_a_run_takes_its_diagnostics_away(config):
    carry_out(config)
    carry_out(config.model_copy(update={"overwrite": True, "diagnose": False, "retain": None}))
    assert not (config.out / "diagnostics.json").exists()


def test_a_prior_task_that_cannot_be_asked_stops_the_run_before_it_begins(config, tmp_path):
    long = tmp_path / "long.jsonl"
    write_task(long, "klmnopqr", "f")
    long.write_text(long.read_text().replace("rx:", "z" * 300))
    for retain, error in (("tings", TaskError), (config.task, ConfigError), (str(long), InputError)):
        with pytest.raises(error):
            carry_out(config.model_copy(update={"retain": retain}))
        assert not config.out.exists()


def test_to_retain_needs_to_diagnose():
    with pytest.raises(ConfigError, match="retain needs diagnose"):
        AdaptConfig.make({"task": "toy", "retain": "things"})
