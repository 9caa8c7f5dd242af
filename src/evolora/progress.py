"""How a long piece of work tells the person waiting how far it is."""

from __future__ import annotations

from collections.abc import Mapping


class Progress:
    """What long work calls as it goes; this class says nothing, the command draws a bar on stderr."""

    def start(self, total: float, budget: str) -> None:
        """The work begins.

        Args:
            total: how much of the budget there is to spend, in its own unit; not positive if unknown.
            budget: the name of that budget: ``steps``, ``evaluations``, ``flops``, ``seconds``, or ``rows``.
        """

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """One step is done.

        Args:
            step: how many steps are done.
            metrics: the step's journal line. ``reward_mean``, ``reward_best`` and ``loss`` are shown;
                ``spent`` is the total so far in the unit of the budget (absent: the number of steps).
        """

    def parts(self, done: Mapping[str, tuple[int, int]]) -> None:
        """How far each part of the work is, where it has parts, such as the arms of a study.

        Args:
            done: name of each part to how many pieces of it are done, and how many there are.
        """

    def note(self, text: str) -> None:
        """Says one line, above the bar."""

    def finish(self) -> None:
        """The work is over, well or not; may be called more than once, or without ``start``."""
