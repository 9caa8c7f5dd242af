"""How far a study is, arm by arm, for the person waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from evolora.progress import Progress
from evolora.studies.cells import Cell
from evolora.studies.plan import Plan


class Tally:
    """Counts cells that are done, chosen on or reported, and tells the progress.

    Args:
        plan: what is to be done.
        progress: is told.
    """

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self._planned = {
            name: len(arm.grid) * len(plan.tuning) + len(plan.seeds) for name, arm in plan.arms.items()
        }
        self._done: Counter[str] = Counter()
        self._ran, self._progress = 0, progress
        progress.start(sum(self._planned.values()), "cells")
        self._tell()

    def found(self, cells: Iterable[Cell]) -> None:
        """These were done before."""
        self._done.update(cell.arm for cell in cells)
        self._tell()

    def ran(self, cells: Iterable[Cell]) -> None:
        """These have been done by one run, or have failed."""
        self._ran += 1
        self.found(cells)

    def _tell(self) -> None:
        self._progress.parts({arm: (self._done[arm], count) for arm, count in self._planned.items()})
        self._progress.update(self._ran, {"spent": self._done.total()})
