"""How an update changes the weights' magnitudes and their directions (DoRA, arXiv 2402.09353, eq. 3 and 4).

With one vector w_n for each of the k output channels of a module, before (w) and after (w'):

    dM = 1/k sum_n | ||w'_n|| - ||w_n|| |          dD = 1/k sum_n (1 - cos(w'_n, w_n))

Over modules (and checkpoints) full fine-tuning and DoRA show a negative slope of dM on dD, LoRA a positive
one: it can hardly turn a weight without lengthening it. dM is in the weights' unit; ``relative`` is the same
over the mean ``||w_n||``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

from evolora.diagnostics.deltas import base_weight, changes

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.diagnostics.deltas import Delta, Deltas
    from evolora.engine import Base


@dataclass(frozen=True)
class Change:
    """One module.

    Attributes:
        magnitude: dM, mean absolute change of an output channel's norm.
        direction: dD, mean of 1 - cos; 0 for a change of length alone.
        relative: dM over the mean norm.
    """

    magnitude: float
    direction: float
    relative: float


@dataclass(frozen=True)
class Decomposition:
    """All modules.

    Attributes:
        modules: name to its change.
        slope: of dM on dD over modules, by least squares; nan for fewer than two different dD.
        correlation: Pearson's, of the two over modules; nan where one of them does not vary.
    """

    modules: dict[str, Change]
    slope: float
    correlation: float


def decompose(base: Base, deltas: Deltas) -> Decomposition:
    """Magnitude against direction, module by module.

    Raises:
        ModelError: a module's weight is quantised.
    """
    modules = {name: change_of(base_weight(base, name), delta) for name, delta in deltas.items()}
    pairs = [(change.direction, change.magnitude) for change in modules.values()]
    return Decomposition(modules, *_line(pairs))


def change_of(weight: Tensor, delta: Delta) -> Change:
    """One module.

    Args:
        weight: ``[d_out, d_in]``, frozen; a channel of zeros has no direction and is left out of dD.
        delta: what is added to it.
    """
    lengths = turned = grown = 0.0
    channels = directed = 0
    for old, change in changes(weight, delta):
        new = old + change
        before, after = old.norm(dim=1), new.norm(dim=1)
        lengths += before.sum().item()
        grown += (after - before).abs().sum().item()
        there = (before > 0) & (after > 0)
        # half the squared distance of the unit vectors: 1 - cos would lose a small turn to rounding
        apart = new[there] / after[there, None] - old[there] / before[there, None]
        turned += apart.square().sum().item() / 2
        channels, directed = channels + len(old), directed + int(there.sum())
    relative = grown / lengths if lengths > 0 else float("nan")
    return Change(grown / channels, turned / directed if directed else float("nan"), relative)


def _line(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope and correlation of the second on the first."""
    nan = float("nan")
    if len(pairs) < 2:
        return nan, nan
    middle = [sum(column) / len(pairs) for column in zip(*pairs, strict=True)]
    centred = [(x - middle[0], y - middle[1]) for x, y in pairs]
    xx, yy = sum(x * x for x, _ in centred), sum(y * y for _, y in centred)
    xy = sum(x * y for x, y in centred)
    return xy / xx if xx > 0 else nan, xy / sqrt(xx * yy) if xx * yy > 0 else nan
