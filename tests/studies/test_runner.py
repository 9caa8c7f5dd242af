import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest
from toy_study import Toy

from evolora.errors import ConfigError, ProtocolError, RunError
from evolora.progress import Progress
from evolora.studies import Arm, Preset, run_study
from evolora.studies.plan import make_plan


@pytest.fixture
def log(tmp_path, monkeypatch):
    path = tmp_path / "log"
    monkeypatch.setenv("TOY_LOG", str(path))
    return lambda: path.read_text().splitlines() if path.exists() else []


class Notes(Progress):
    def __init__(self):
        self.notes, self.updates, self.last = [], [], {}

    def start(self, total, budget):
        self.total = total, budget

    def note(self, text):
        self.notes.append(text)

    def update(self, step, metrics):
        self.updates.append((step, metrics["spent"]))

    def parts(self, done):
        self.last = done


def test_the_record_holds_plan_choices_cells_and_findings(tmp_path):
    record = run_study(Toy(), "smoke", tmp_path / "toy")
    assert record == json.loads((tmp_path / "toy" / "record.json").read_text())
    assert record["chosen"] == {"tuned": {"guess": 2.5}, "fixed": {}}
    assert len(record["cells"]) == 2 * 6
    (finding,) = record["findings"]
    assert finding["holds"]
    assert finding["p"] == pytest.approx(2 / 2**6)
    distances = {(c["arm"], c["seed"]): c["distance"] for c in record["cells"]}
    mean = sum(distances["fixed", s] - distances["tuned", s] for s in range(10, 16)) / 6
    assert finding["effect"] == pytest.approx(mean)


def test_what_is_chosen_on_is_not_reported(tmp_path, log):
    run_study(Toy(), "smoke", tmp_path / "toy")
    tried = {(kind, int(seed)) for kind, _, seed in map(str.split, log())}
    assert {seed for kind, seed in tried if kind == "fixed"} == set(range(10, 16))
    record = json.loads((tmp_path / "toy" / "record.json").read_text())
    assert {cell["seed"] for cell in record["cells"]} == set(range(10, 16))


def test_the_plan_stands_before_the_first_cell_and_is_never_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_FAILS", "tuned 0")
    with pytest.raises(RunError, match=r"3 of 6 cells failed.*out of luck"):
        run_study(Toy(), "smoke", tmp_path / "toy")
    plan = json.loads((tmp_path / "toy" / "plan.json").read_text())
    assert plan["claims"][0]["falsified_by"]
    monkeypatch.delenv("TOY_FAILS")
    with pytest.raises(RunError, match=r"another plan .*preset, seeds, tuning"):
        run_study(Toy(), "few", tmp_path / "toy")
    assert run_study(Toy(), "smoke", tmp_path / "toy")["plan"] == plan


def test_cells_that_are_done_are_not_done_again(tmp_path, log, monkeypatch):
    monkeypatch.setenv("TOY_FAILS", "tuned 12")
    with pytest.raises(RunError, match="1 of 12 cells failed, the first: tuned, seed 12"):
        run_study(Toy(), "smoke", tmp_path / "toy")
    assert len(log()) == 6 + 12
    monkeypatch.delenv("TOY_FAILS")
    whole = run_study(Toy(), "smoke", tmp_path / "toy")
    assert len(log()) == 6 + 12 + 1
    again = run_study(Toy(), "smoke", tmp_path / "toy")
    assert len(log()) == 6 + 12 + 1
    fresh = run_study(Toy(), "smoke", tmp_path / "other")
    for record in (whole, again, fresh):
        record.pop("provenance")
    assert whole == again == fresh


def test_processes_come_to_the_same_record(tmp_path):
    alone, together = (run_study(Toy(), "smoke", tmp_path / str(n), workers=n) for n in (1, 2))
    for record in (alone, together):
        record.pop("provenance")
    assert alone == together


@pytest.mark.parametrize("workers", [1, 2])
def test_a_cell_that_fails_in_any_way_stops_no_other(tmp_path, monkeypatch, workers):
    monkeypatch.setenv("TOY_FAILS", "fixed 10")
    with pytest.raises(RunError, match=r"1 of 12 cells failed, .*seed 10: LookupError: out of luck"):
        run_study(Toy(), "smoke", tmp_path / "toy", workers=workers)
    assert len(list((tmp_path / "toy" / "cells").glob("*.json"))) == 6 + 11


def test_another_revision_takes_no_old_cells(tmp_path, log):
    run_study(Toy(), "few", tmp_path / "toy")
    done = len(log())

    class Changed(Toy):
        revision = 2

    (tmp_path / "toy" / "plan.json").unlink()
    run_study(Changed(), "few", tmp_path / "toy")
    assert len(log()) == 2 * done


def test_few_seeds_are_warned_of(tmp_path):
    notes = Notes()
    run_study(Toy(), "few", tmp_path / "toy", progress=notes)
    assert "2 paired seeds can never reach p = 0.05: that takes 6" in notes.notes


def test_progress_counts_the_cells_of_each_arm_and_those_of_before(tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_FAILS", "fixed 10")
    first, then = Notes(), Notes()
    with pytest.raises(RunError):
        run_study(Toy(), "few", tmp_path / "toy", progress=first)
    assert first.total == (7, "cells")
    assert first.updates == [(0, 0), (0, 0), (1, 1), (2, 2), (3, 3), (3, 3), (4, 4), (5, 5), (6, 6), (7, 7)]
    assert first.last == {"tuned": (5, 5), "fixed": (2, 2)}
    assert "chosen for tuned: guess 2.5" in first.notes
    monkeypatch.delenv("TOY_FAILS")
    run_study(Toy(), "few", tmp_path / "toy", progress=then)
    assert then.updates == [(0, 0), (0, 3), (0, 6), (1, 7)]
    assert then.last == first.last


def test_a_study_killed_at_random_resumes_to_the_same_record(tmp_path):
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from toy_study import Toy\n"
        "from evolora.studies import run_study\n"
        "cell = Toy.cell\n"
        "Toy.cell = lambda *a: (time.sleep(0.05), cell(*a))[1]\n"
        "run_study(Toy(), 'smoke', sys.argv[2])\n"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path / "killed")]
    for number in (signal.SIGKILL, signal.SIGINT):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        cells = tmp_path / "killed" / "cells"
        before = len(list(cells.glob("*.json"))) if cells.exists() else 0
        while process.poll() is None and len(list(cells.glob("*.json"))) < before + 3:
            time.sleep(0.01)
        os.kill(process.pid, number)
        assert process.wait() != 0
    resumed, whole = (
        run_study(Toy(), "smoke", tmp_path / "killed"),
        run_study(Toy(), "smoke", tmp_path / "whole"),
    )
    for record in (resumed, whole):
        record.pop("provenance")
    assert resumed == whole


def test_unfair_plans_are_refused():
    class Overlapping(Toy):
        presets: ClassVar = {"smoke": Preset(seeds=(1, 2), tuning=(2,))}

    class Uneven(Toy):
        def arms(self, settings):
            return {"a": Arm(grid=({"guess": 0},)), "b": Arm(grid=({"guess": 0}, {"guess": 1}))}

    class Untuned(Toy):
        presets: ClassVar = {"smoke": Preset(seeds=(1, 2))}

    for study, words in (
        (Overlapping(), "seed 2 is both chosen on and reported"),
        (Uneven(), r"grids of \[1, 2\] settings"),
        (Untuned(), "no seed to tune on"),
    ):
        with pytest.raises(ProtocolError, match=words):
            make_plan(study, "smoke")
    with pytest.raises(ConfigError, match="no preset 'large'; choose smoke, few"):
        make_plan(Toy(), "large")


def test_a_damaged_cell_is_named(tmp_path):
    run_study(Toy(), "few", tmp_path / "toy")
    victim = next((tmp_path / "toy" / "cells").glob("*.json"))
    victim.write_text("{")
    with pytest.raises(RunError, match=rf"{victim.name}: a damaged cell"):
        run_study(Toy(), "few", tmp_path / "toy")


def test_a_setting_that_came_to_nothing_is_never_chosen(tmp_path):
    class Broken(Toy):
        def cell(self, options, seed, settings):
            found = super().cell(options, seed, settings)
            return found | ({"validation": float("nan")} if options["guess"] == 2.5 else {})

    assert run_study(Broken(), "few", tmp_path / "toy")["chosen"]["tuned"] == {"guess": 0.0}
