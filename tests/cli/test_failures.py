import json
import os
import signal
import subprocess
import sys
import time

import pytest

from evolora.errors import ConfigError, EvoloraError, ProtocolError, TaskError

CASES = [
    (TaskError("a prompt is in two splits", where="my.jsonl:3", mend="remove one"), 2),
    (ProtocolError("tell before ask"), 1),
    (EvoloraError("no room on the disk"), 1),
    (ValueError("two\nlines"), 1),
    (KeyboardInterrupt(), 130),
]


@pytest.mark.parametrize(("error", "code"), CASES, ids=lambda value: type(value).__name__)
def test_a_failure_has_its_exit_code_and_no_traceback(run, adaptation, error, code):
    adaptation.raises = error
    result = run("adapt", "--task", "toy", "--quiet")
    assert result.exit_code == code
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(("error", "code"), CASES, ids=lambda value: type(value).__name__)
def test_with_json_a_failure_is_one_object(run, adaptation, only_object, error, code):
    adaptation.raises = error
    result = run("adapt", "--task", "toy", "--quiet", "--json")
    assert result.exit_code == code
    found = only_object(result.stdout)["error"]
    assert found["exit_code"] == code
    assert found["message"] in result.stderr


def test_the_object_keeps_what_where_and_mend_apart(run, adaptation, only_object):
    adaptation.raises = CASES[0][0]
    found = only_object(run("adapt", "--task", "toy", "--json").stdout)["error"]
    assert (found["kind"], found["what"]) == ("TaskError", "a prompt is in two splits")
    assert (found["where"], found["mend"]) == ("my.jsonl:3", "remove one")


def test_an_unexpected_error_says_how_to_see_more(run, adaptation, monkeypatch):
    adaptation.raises = ValueError("odd")
    assert "EVOLORA_DEBUG=1" in run("adapt", "--task", "toy").stderr
    monkeypatch.setenv("EVOLORA_DEBUG", "1")
    assert "Traceback" in run("adapt", "--task", "toy").stderr


def test_an_interrupt_says_how_to_go_on(run, adaptation, tmp_path):
    (tmp_path / "runs/mine/checkpoints/step-000003").mkdir(parents=True)
    adaptation.raises = KeyboardInterrupt()
    assert (
        "evolora adapt --resume --out runs/mine" in run("adapt", "--task", "toy", "--out", "runs/mine").stderr
    )


def test_a_usage_error_with_json_is_an_object_too(run, only_object):
    result = run("adapt", "--tsk", "x", "--json")
    assert result.exit_code == 2
    assert only_object(result.stdout)["error"]["kind"] == "UsageError"


def test_the_installed_command_fails_in_one_line():
    done = subprocess.run(
        [sys.executable, "-c", "from evolora.cli import main; main()", "adapt", "--batch", "x"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


def test_sigint_ends_the_true_process_with_130(tmp_path):
    code = (
        "import sys, types, time\n"
        "fake = types.ModuleType('evolora.job')\n"
        "def adapt(config, progress):\n"
        "    print('ready', file=sys.stderr, flush=True)\n"
        "    time.sleep(60)\n"
        "fake.carry_out = adapt\n"
        "sys.modules['evolora.job'] = fake\n"
        "from evolora.cli import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "adapt", "--task", "toy", "--json", "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "EVOLORA_DEBUG": ""},
        # a test runner in the background may have SIGINT ignored, which children inherit
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stderr.readline() == "ready\n"
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert json.loads(stdout)["error"]["exit_code"] == 130
    assert "Traceback" not in stderr


def test_too_little_memory_says_what_to_lower(run, adaptation):
    adaptation.raises = MemoryError()
    result = run("adapt", "--task", "toy")
    assert result.exit_code == 1
    assert "not enough memory; lower the population" in result.stderr


def test_a_full_stdout_does_not_hide_the_exit_code(monkeypatch):
    from evolora.cli.failures import fail

    def full(_value):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("evolora.cli.failures.emit", full)
    assert fail(ConfigError("no"), ["adapt", "--json"]) == 2
