"""A race in which all contestants compute one thing: compared before they are timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from evolora.bench.timing import Timings, interleave

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.engine import Base

TOLERANCE = 1e-4
_FAILURES = (RuntimeError, ValueError, TypeError, NotImplementedError, AttributeError, KeyError, IndexError)


class Comparison:
    """Contestants, what they computed, and why some did not.

    Args:
        base: in float32 results must agree; in half precision they differ with the batching, and are
        not compared.

    Attributes:
        agree: whether all results equal those of the first contestant; None where nothing was compared.
        reasons: contestant to why it did not run.
    """

    def __init__(self, base: Base) -> None:
        self.agree: bool | None = None
        self.reasons: dict[str, str] = {}
        self._base = base
        self._runs: dict[str, Callable[[], Any]] = {}
        self._of: dict[str, float] = {}
        self._expected: Any = None

    def add(self, name: str, run: Callable[[], Any], *, of: float = 1.0, compare: bool = True) -> None:
        """Runs a contestant once (its warm-up), compares the result, and enters it.

        Args:
            name: the first one to be added is what the others are compared with.
            run: its work; returns logits ``[n, P, V]`` of the first n members, or n lists of P texts.
            of: how many times this work stands for.
            compare: whether it should compute the same.
        """
        with self.making(name):
            found = run()
            self._runs[name], self._of[name] = run, of
            if self._expected is None:
                self._expected = found
            elif compare and str(self._base.dtype) == "torch.float32":
                same = _same(found, self._expected)
                self.agree = same and self.agree is not False
                if not same:
                    self.reasons[name] = "its results differ from ours"

    @contextmanager
    def making(self, *names: str) -> Iterator[None]:
        """Contestants whose making or first run fails within take no part; the reason is kept."""
        try:
            yield
        except _FAILURES as error:
            first = (str(error).strip().splitlines() or ["no message"])[0]
            for name in names:
                if name not in self._runs:
                    self.reasons.setdefault(name, f"{type(error).__name__}: {first}")

    def run(self, rounds: int) -> Timings:
        """Times all contestants in turn; seconds stand for the whole work of each."""
        measured = interleave(self._runs, rounds, self._base.device).seconds
        return Timings({name: [s * self._of[name] for s in own] for name, own in measured.items()})


def _same(found: Any, expected: Any) -> bool:
    if isinstance(found, list):
        return bool(found == expected[: len(found)])
    wanted: Tensor = expected[: len(found)]
    return bool((found - wanted).abs().max() <= TOLERANCE * wanted.abs().max())
