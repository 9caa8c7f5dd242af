import json
import os
import subprocess
import sys

import numpy as np
import pytest
import yaml

from evolora.errors import ProtocolError, RunError
from evolora.runs import RunFolder
from evolora.runs import folder as folder_module
from evolora.runs.config import differences

CONFIG = {
    "method": "eggroll",
    "options": {"sigma": 0.02, "lr": 1e-5},
    "budget": {"steps": 40, "seconds": None},
}


def record_of(path):
    return json.loads((path / "run.json").read_text())


def test_a_new_run_has_its_configuration_and_says_that_it_is_running(tmp_path):
    with RunFolder.create(tmp_path / "a" / "b", CONFIG) as run:
        assert yaml.safe_load((run.path / "config.yaml").read_text()) == CONFIG == run.config
        assert record_of(run.path)["status"] == run.status == "running"
        run.finish()
    assert record_of(run.path)["status"] == "done"


def test_an_empty_folder_may_be_used(tmp_path):
    RunFolder.create(tmp_path, CONFIG).close()
    assert record_of(tmp_path)["status"].startswith("stopped")


def test_an_existing_run_is_refused_and_both_ways_out_are_named(tmp_path):
    RunFolder.create(tmp_path / "x", CONFIG).close()
    with pytest.raises(RunError, match=r"--resume.*--overwrite"):
        RunFolder.create(tmp_path / "x", CONFIG)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_is_no_run_is_never_touched(tmp_path, overwrite):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match="no run folder"):
        RunFolder.create(tmp_path, CONFIG, overwrite=overwrite)
    assert [f.name for f in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("text", ["{", "[]", '{"state": 1}'])
def test_a_foreign_run_json_does_not_make_a_run_folder(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    (tmp_path / "adapter").mkdir()
    with pytest.raises(RunError, match=r"run\.json"):
        RunFolder.create(tmp_path, CONFIG, overwrite=True)
    assert (tmp_path / "adapter").is_dir()


def test_overwriting_removes_the_old_run_and_keeps_other_files(tmp_path):
    with RunFolder.create(tmp_path, CONFIG) as run:
        run.journal.append({"step": 1})
        run.save_result({"base": 1})
        run.save_metrics()
        run.adapter_path.mkdir()
        run.checkpoints_path.mkdir()
        run.report_path.write_text("old")
        run.finish()
    (tmp_path / "notes.txt").write_text("mine")
    with RunFolder.create(tmp_path, {"method": "adamw"}, overwrite=True) as run:
        assert run.journal.read() == []
        assert sorted(f.name for f in tmp_path.iterdir()) == [
            "config.yaml",
            "notes.txt",
            "run.json",
            "run.lock",
        ]
        assert run.config == {"method": "adamw"}


def test_a_file_in_the_way_is_named_and_kept(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(RunError, match="is a file"):
        RunFolder.create(tmp_path / "out", CONFIG)
    with pytest.raises(RunError, match=r"out/deeper"):
        RunFolder.create(tmp_path / "out" / "deeper" / "run", CONFIG)
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a place that nobody can write")
def test_an_unwritable_parent_is_one_helpful_line():
    with pytest.raises(RunError, match="cannot be written") as caught:
        RunFolder.create("/proc/self/evolora/run", CONFIG)
    assert "\n" not in str(caught.value)


def test_a_disk_that_fills_up_leaves_nothing_behind(tmp_path, monkeypatch):
    written = []

    def full(path, data):
        if written:
            raise RunError("cannot be written (No space left on device)", where=path)
        written.append(path)
        path.write_text(data)

    monkeypatch.setattr(folder_module, "write_atomically", full)
    with pytest.raises(RunError, match="No space"):
        RunFolder.create(tmp_path / "a" / "b", CONFIG)
    assert written
    assert list(tmp_path.iterdir()) == []


def test_a_configuration_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    with pytest.raises(ProtocolError, match=r"config\.reward"):
        RunFolder.create(tmp_path / "x", {"reward": object()})
    assert list(tmp_path.iterdir()) == []


def test_a_run_has_one_writer(tmp_path):
    run = RunFolder.create(tmp_path, CONFIG)
    with pytest.raises(RunError, match=rf"pid {os.getpid()}\) is writing"):
        RunFolder.open(tmp_path)
    with pytest.raises(RunError, match="is writing"):
        RunFolder.create(tmp_path, CONFIG, overwrite=True)
    run.close()
    RunFolder.open(tmp_path).close()


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path):
    code = (
        "import os, sys; from evolora.runs import RunFolder;"
        "run = RunFolder.create(sys.argv[1], {}); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path], check=False).returncode == -9
    assert record_of(tmp_path)["status"] == "running"
    with RunFolder.open(tmp_path) as run:
        assert run.status == "running"
        assert len(record_of(tmp_path)["resumed"]) == 1


def test_resuming_names_the_option_that_differs(tmp_path):
    RunFolder.create(tmp_path, CONFIG).close()
    with pytest.raises(RunError, match=r"options\.sigma was 0\.02, is 0\.05"):
        RunFolder.open(tmp_path, {**CONFIG, "options": {"sigma": 0.05, "lr": 1e-5}})
    assert record_of(tmp_path)["status"].startswith("stopped")
    RunFolder.open(tmp_path).close()


def test_a_budget_may_grow_where_it_is_allowed_and_is_kept(tmp_path):
    RunFolder.create(tmp_path, CONFIG).close()
    longer = {**CONFIG, "budget": {"steps": 80, "seconds": None}}
    with pytest.raises(RunError, match=r"budget\.steps was 40, is 80"):
        RunFolder.open(tmp_path, longer)
    RunFolder.open(tmp_path, longer, may_change=["budget"]).close()
    assert RunFolder.open(tmp_path, longer).config == longer


def test_what_is_written_alike_is_no_difference():
    assert (
        differences({"a": (1, 2), "b": float("nan"), "c": {}}, {"b": float("nan"), "a": [1, 2], "c": {}})
        == []
    )
    assert differences({"a": 1}, {"a": 1, "b": None}) == ["b was absent, is None"]
    assert differences({"budgets": 1}, {"budgets": 2}, ["budget"]) == ["budgets was 1, is 2"]


def test_a_done_run_and_a_folder_without_a_run_cannot_be_resumed(tmp_path):
    with RunFolder.create(tmp_path / "x", CONFIG) as run:
        run.finish()
    with pytest.raises(RunError, match="done"):
        RunFolder.open(tmp_path / "x")
    with pytest.raises(RunError, match="no run folder"):
        RunFolder.open(tmp_path)
    with pytest.raises(RunError, match="does not exist"):
        RunFolder.open(tmp_path / "y")
    assert [f.name for f in tmp_path.iterdir()] == ["x"]


def test_a_run_without_its_configuration_cannot_be_resumed(tmp_path):
    RunFolder.create(tmp_path, CONFIG).close()
    (tmp_path / "config.yaml").write_text("a: [")
    with pytest.raises(RunError, match=r"config\.yaml.*--overwrite"):
        RunFolder.open(tmp_path)


def test_an_exception_is_recorded_in_one_line_and_passes_on(tmp_path):
    with pytest.raises(ValueError, match="boom"), RunFolder.create(tmp_path, CONFIG):
        raise ValueError("boom\n  twice")
    assert record_of(tmp_path)["status"] == "failed: boom twice"
    with pytest.raises(KeyboardInterrupt), RunFolder.open(tmp_path):
        raise KeyboardInterrupt
    assert record_of(tmp_path)["status"] == "stopped: interrupted"


def test_an_ended_run_cannot_end_again(tmp_path):
    with RunFolder.create(tmp_path, CONFIG) as run:
        run.stop("seconds")
        with pytest.raises(ProtocolError, match="stopped"):
            run.finish()
    assert record_of(tmp_path)["status"] == "stopped: seconds"


def test_recorded_fields_add_up_and_are_strict_json(tmp_path):
    with RunFolder.create(tmp_path, CONFIG) as run:
        run.record(seed=3, ledger={"seconds": float("nan"), "evaluations": np.int64(7)})
        run.record(seed=4, where=tmp_path, curve=np.array([1.5, float("inf")]))
        with pytest.raises(ProtocolError, match="status"):
            run.record(status="done")
    found = json.loads((tmp_path / "run.json").read_text(), parse_constant=pytest.fail)
    assert found["seed"] == 4
    assert found["ledger"] == {"seconds": None, "evaluations": 7}
    assert found["curve"] == [1.5, None]
    assert found["where"] == str(tmp_path)
