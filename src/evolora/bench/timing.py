"""Timing on a machine that other work shares: contestants run in turn, and only their ratios are reported."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Timings:
    """Seconds of each contestant, one number a round.

    Attributes:
        seconds: by contestant; all lists have the same length, and entry i of each is from round i.
    """

    seconds: Mapping[str, list[float]]

    def median(self, name: str) -> float:
        """The median of a contestant's rounds, in seconds."""
        return median(self.seconds[name])

    def ratio(self, slow: str, fast: str) -> float | None:
        """How many times as fast ``fast`` is as ``slow``, by medians; None where one did not run."""
        if slow not in self.seconds or fast not in self.seconds:
            return None
        return self.median(slow) / self.median(fast)

    def spread(self, slow: str, fast: str) -> tuple[float, float]:
        """The smallest and the largest ratio of any one round."""
        ratios = [s / f for s, f in zip(self.seconds[slow], self.seconds[fast], strict=True)]
        return min(ratios), max(ratios)


def clock(device: torch.device) -> tuple[str, Callable[[], float]]:
    """The clock that suits a device, and its name.

    With one thread on a CPU it is the process's own CPU time, which other processes hardly touch; otherwise
    the wall clock, since threads that wait for each other burn CPU time.
    """
    import torch

    if device.type == "cpu" and torch.get_num_threads() == 1:
        return "cpu time", time.process_time
    return "wall", time.perf_counter


def interleave(contestants: Mapping[str, Callable[[], Any]], rounds: int, device: torch.device) -> Timings:
    """Runs every contestant once a round, each round in another order.

    So a machine that slows down or speeds up does so for all of them, and nobody always follows the same
    neighbour. The caller has run each of them once before (to compare what they compute): that was the
    warm-up.

    Args:
        contestants: by name.
        rounds: how often.
        device: where they compute; an asynchronous one is waited for.
    """
    names = list(contestants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    _, now = clock(device)
    collecting = gc.isenabled()
    gc.disable()
    try:
        for turn in range(rounds):
            for name in random.Random(turn).sample(names, len(names)):
                _wait(device)
                began = now()
                contestants[name]()
                _wait(device)
                seconds[name].append(now() - began)
            gc.collect()
    finally:
        if collecting:
            gc.enable()
    return Timings(seconds)


def _wait(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
