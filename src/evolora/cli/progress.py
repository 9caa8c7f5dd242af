"""The progress of long work on stderr: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from evolora.progress import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

_SECONDS_BETWEEN_LINES = 5.0


def make_progress(*, quiet: bool = False) -> Progress:
    """The progress that suits stderr: none when ``quiet``, a bar on a terminal, lines otherwise."""
    if quiet:
        return Progress()
    return LiveBar() if sys.stderr.isatty() else Lines()


class LiveBar(Progress):
    """A rich bar: step, rate, time left, reward now and best, what is spent of the budget.

    Work that has parts has a bar for each above it.
    """

    def __init__(self) -> None:
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._parts: dict[str, TaskID] = {}
        self._budget, self._total, self._began = "", 0.0, 0.0

    def start(self, total: float, budget: str) -> None:
        """Draws an empty bar."""
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        from evolora.cli.output import console

        self.finish()
        self._budget, self._total, self._began = budget, total, time.monotonic()
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[line]}", markup=False),
            TimeRemainingColumn(),
            console=console(sys.stderr),
            transient=True,
        )
        self._task = self._bar.add_task("", total=total if total > 0 else None, line="")
        self._bar.start()

    def parts(self, done: Mapping[str, tuple[int, int]]) -> None:
        """Moves the bar of each part."""
        if self._bar is None:
            return
        for name, (finished, planned) in done.items():
            if name not in self._parts:
                self._parts[name] = self._bar.add_task(name, total=planned, line="")
            self._bar.update(self._parts[name], completed=finished, line=f"{finished} of {planned}")

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Moves the bar."""
        if self._bar is None or self._task is None:
            return
        spent = metrics.get("spent", float(step))
        line = describe(step, metrics, spent, self._total, self._budget, time.monotonic() - self._began)
        label = _label(step, spent, self._budget)
        self._bar.update(self._task, completed=spent, description=label, line=line)

    def note(self, text: str) -> None:
        """Prints the line above the bar."""
        from evolora.cli.output import console

        (self._bar.console if self._bar is not None else console(sys.stderr)).print(text)

    def finish(self) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar, self._parts = None, {}


class Lines(Progress):
    """A line on stderr every few seconds, for log files and pipes."""

    def __init__(self) -> None:
        self._budget, self._total, self._began = "", 0.0, 0.0
        self._first: tuple[float, float] | None = None
        self._last = -_SECONDS_BETWEEN_LINES
        self._pending: str | None = None

    def start(self, total: float, budget: str) -> None:
        """Starts the clock."""
        self.finish()
        self._budget, self._total, self._began = budget, total, time.monotonic()
        self._first = None

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Prints the step's line if the last one is some seconds old."""
        now = time.monotonic()
        spent = metrics.get("spent", float(step))
        self._first = self._first or (now, spent)
        line = describe(step, metrics, spent, self._total, self._budget, now - self._began)
        self._pending = f"{_label(step, spent, self._budget)}: {line}{self._left(now, spent)}"
        if now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            self.finish()

    def _left(self, now: float, spent: float) -> str:
        """The time left at the rate since the first update."""
        then, before = self._first or (now, spent)
        if not spent > before or self._total <= spent:
            return ""
        seconds = (self._total - spent) * (now - then) / (spent - before)
        return f", {timedelta(seconds=round(seconds))} left"

    def note(self, text: str) -> None:
        """Prints the line."""
        print(text, file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Prints the last step's line if it has not been."""
        if self._pending is not None:
            print(self._pending, file=sys.stderr, flush=True)
            self._pending = None


def describe(
    step: int, metrics: Mapping[str, float], spent: float, total: float, budget: str, elapsed: float
) -> str:
    """One line on a step: rewards, rate, what is spent of the budget.

    Args:
        step: steps done.
        metrics: the step's journal line.
        spent: of the budget, in its unit.
        total: of the budget; not positive if unknown.
        budget: its name.
        elapsed: seconds since the start.
    """
    parts = []
    for name, label in (("reward_mean", "reward"), ("reward_best", "best"), ("loss", "loss")):
        if name in metrics:
            parts.append(f"{label} {metrics[name]:.3f}")
    if elapsed > 0 and step > 0:
        noun, fast = _noun(budget), step >= elapsed
        parts.append(f"{step / elapsed:.2f} {noun}s/s" if fast else f"{elapsed / step:.1f} s/{noun}")
    parts.append(f"{_short(spent)} of {_short(total)} {budget}" if total > 0 else f"{_short(spent)} {budget}")
    return ", ".join(parts)


def _label(step: int, spent: float, budget: str) -> str:
    """What has been reached; a study that goes on counts the cells of before."""
    return f"{_noun(budget)} {spent if budget == 'cells' else step:.0f}"


def _noun(budget: str) -> str:
    """What is counted: the cells of a study, else steps."""
    return "cell" if budget == "cells" else "step"


def _short(number: float) -> str:
    return f"{number:,.0f}" if abs(number) < 1e6 else f"{number:.3g}"
