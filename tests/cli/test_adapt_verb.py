from pathlib import Path

import pytest
import yaml

from evolora.cli.adapt import _PANELS, parse_settings
from evolora.config import AdaptConfig
from evolora.errors import ConfigError


def test_every_field_of_the_config_is_an_option():
    shown = [name for names in _PANELS.values() for name in names]
    assert sorted(shown) == sorted(AdaptConfig.model_fields)


def test_options_reach_the_config(run, adaptation):
    result = run(
        "adapt", "--task", "t.jsonl", "--budget-steps", "3", "--targets", "q_proj,v_proj", "--out", "o",
        "--set", "sigma=0.02", "--set", "kind=ranks", "--trust-remote-code", "--seed", "5",
        "--start", "a", "--layers", "0,1",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert adaptation.configs == [
        AdaptConfig(
            task="t.jsonl",
            budget_steps=3,
            targets=["q_proj", "v_proj"],
            out=Path("o"),
            options={"sigma": 0.02, "kind": "ranks"},
            trust_remote_code=True,
            seed=5,
            start=Path("a"),
            layers=[0, 1],
        )
    ]


def test_the_command_line_wins_over_the_file(run, adaptation, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("task: toy\nbatch: 8\nseed: 3\noptions: {sigma: 0.1, rank: 2}\n")
    run("adapt", "--config", file, "--batch", "4", "--set", "sigma=0.5")
    (config,) = adaptation.configs
    assert (config.batch, config.seed, config.options) == (4, 3, {"sigma": 0.5, "rank": 2})


def test_seed_zero_on_the_command_line_wins_too(run, adaptation, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("task: toy\nseed: 3\n")
    run("adapt", "--config", file, "--seed", "0")
    assert adaptation.configs[0].seed == 0


def test_resume_needs_only_the_folder(run, adaptation, tmp_path):
    saved = AdaptConfig(task="toy", batch=6, options={"sigma": 0.3}, out=Path("run"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(saved.record()))
    result = run("adapt", "--resume", "--out", "run")
    assert result.exit_code == 0, result.stderr
    assert adaptation.configs == [saved.model_copy(update={"resume": True})]


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["--batch", "two"], "--batch: "),
        (["--set", "sigma"], "--set: "),
        (["--dtype", "int8"], "--dtype: "),
        (["--config", "none.yaml"], "none.yaml: "),
        (["--resume", "--overwrite"], "exclude each other"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_option_is_one_line_and_nothing_runs(run, adaptation, tmp_path, arguments, where):
    result = run("adapt", "--task", "toy", *arguments)
    assert result.exit_code == 2
    assert where in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not adaptation.configs
    assert not list(tmp_path.iterdir())


def test_a_wrong_value_on_the_command_line_is_not_blamed_on_the_file(run, adaptation, tmp_path):
    (tmp_path / "c.yaml").write_text("task: toy\n")
    assert run("adapt", "--config", "c.yaml", "--batch", "x").stderr.startswith("error: --batch: ")


def test_json_is_the_result_alone_even_if_the_work_prints(run, adaptation, only_object):
    adaptation.prints = "noise of a reward function"
    result = run("adapt", "--task", "toy", "--json")
    found = only_object(result.stdout)
    assert found["difference"] == {"value": 0.3, "ci": [0.2, 0.4], "p": 0.001}
    assert found["ledger"]["seconds"] is None
    assert "noise" in result.stderr


def test_the_story_tells_accuracies_gain_samples_and_places(run, adaptation):
    text = run("adapt", "--task", "toy", "--quiet").stdout
    for part in (
        "10.0 %",
        "40.0 %",
        "+30.0",
        "[20.0, 40.0]",
        "better",
        "runs/x/adapter",
        "runs/x/report.html",
    ):
        assert part in text
    assert text.count("✓") + text.count("✗") == 6


def test_quiet_says_nothing_on_stderr(run, adaptation):
    assert run("adapt", "--task", "toy", "--quiet").stderr == ""
    assert "reward 1.000" in run("adapt", "--task", "toy").stderr


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=1", 1),
        ("a=1e-3", 0.001),
        ("a=true", True),
        ("a=None", None),
        ("a=b=c", "b=c"),
        ("a=", ""),
        ("a=01x", "01x"),
    ],
)
def test_settings_are_numbers_words_or_text(text, value):
    ((name, found),) = parse_settings([text])
    assert name == "a"
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["sigma", "=3", ""])
def test_a_setting_without_a_name_or_a_value_is_refused(text):
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        list(parse_settings([text]))


def test_nothing_is_resumed_where_no_run_is(run, adaptation):
    result = run("adapt", "--resume", "--out", "nowhere")
    assert result.exit_code == 2
    assert "nowhere: there is no run to resume" in result.stderr


def test_an_interrupt_before_anything_was_saved_does_not_say_that_it_was(run, adaptation):
    adaptation.raises = KeyboardInterrupt()
    assert "saved" not in run("adapt", "--task", "toy", "--out", "o").stderr
