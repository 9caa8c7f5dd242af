import time

import pytest
import torch

from evolora.bench.timing import Timings, interleave
from evolora.bench.timing import clock as choose_clock

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "process_time", lambda: now[0])
    return now


@pytest.mark.parametrize(("threads", "name"), [(1, "cpu time"), (2, "wall")])
def test_one_thread_is_timed_by_its_own_cpu_time(monkeypatch, threads, name):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    found, now = choose_clock(CPU)
    assert found == name
    before = now()
    time.sleep(0.05)
    assert (now() - before >= 0.05) is (name == "wall")


def test_every_contestant_runs_once_a_round_and_is_charged_its_own_time(clock):
    order = []

    def work(name, seconds):
        def run():
            order.append(name)
            clock[0] += seconds

        return run

    timings = interleave({"a": work("a", 1.0), "b": work("b", 3.0), "c": work("c", 6.0)}, 4, CPU)
    assert timings.seconds == {"a": [1.0] * 4, "b": [3.0] * 4, "c": [6.0] * 4}
    rounds = [tuple(order[i : i + 3]) for i in range(0, 12, 3)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in rounds)
    assert len(set(rounds)) > 1


def test_a_machine_that_slows_down_leaves_the_ratio_alone(clock):
    speed = [1.0]

    def work(seconds):
        def run():
            clock[0] += seconds * speed[0]
            speed[0] *= 1.01

        return run

    timings = interleave({"slow": work(2.0), "fast": work(1.0)}, 5, CPU)
    assert timings.ratio("slow", "fast") == pytest.approx(2.0, rel=0.03)
    low, high = timings.spread("slow", "fast")
    assert 1.9 < low <= high < 2.1


def test_one_outlier_does_not_move_the_ratio():
    timings = Timings({"slow": [4.0, 4.0, 90.0], "fast": [2.0, 2.0, 2.0]})
    assert timings.ratio("slow", "fast") == 2.0
    assert timings.spread("slow", "fast") == (2.0, 45.0)


def test_a_contestant_that_did_not_run_has_no_ratio():
    assert Timings({"a": [1.0]}).ratio("b", "a") is None
    assert Timings({"a": [1.0]}).ratio("a", "b") is None
