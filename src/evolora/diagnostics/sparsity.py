"""How many weights an update leaves (nearly) alone, and how many of its entries bf16 would swallow.

    below t      share of entries with |dW| < t rms(W), rms over the module's own weight
    swallowed    share of entries with bf16(W + dW) = bf16(W): what a merge into bf16 weights would lose

bf16 has 8 significant bits: a change below 1/512 to 1/256 of its weight may vanish. The adapter beside the
weights keeps it; merging does not. Evolution strategies move every weight a little, gradients few of them a
lot (matching accuracy, different geometry: arXiv 2604.01499).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evolora.diagnostics.deltas import base_weight, changes, shape_of

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.diagnostics.deltas import Delta, Deltas
    from evolora.engine import Base

THRESHOLDS = (1e-4, 1e-3, 1e-2, 1e-1)


@dataclass(frozen=True)
class Sparsity:
    """Shares of a module's entries, 0 to 1.

    Attributes:
        below: threshold, in units of the weight's rms, to the share of changes below it in absolute value.
        swallowed: share of entries that round to the same bf16 number before and after.
        relative: rms of the change over the rms of the weight.
        entries: how many there are.
    """

    below: dict[float, float]
    swallowed: float
    relative: float
    entries: int


@dataclass(frozen=True)
class Sparsities:
    """Each module, and all entries together (each against its own module's rms)."""

    modules: dict[str, Sparsity]
    whole: Sparsity


def sparsities(base: Base, deltas: Deltas, thresholds: Sequence[float] = THRESHOLDS) -> Sparsities:
    """The sparsity of all modules and of the whole.

    Raises:
        ModelError: a module's weight is quantised.
    """
    modules = {name: sparsity(base_weight(base, name), delta, thresholds) for name, delta in deltas.items()}
    return Sparsities(modules, _together(modules, thresholds))


def sparsity(weight: Tensor, delta: Delta, thresholds: Sequence[float] = THRESHOLDS) -> Sparsity:
    """One module; blocks of rows are multiplied out one after the other.

    Args:
        weight: ``[d_out, d_in]``, frozen.
        delta: what is added to it.
        thresholds: in units of the weight's rms.
    """
    import torch

    d_out, d_in = shape_of(delta)
    entries = d_out * d_in
    rms = torch.linalg.vector_norm(weight, dtype=torch.float32).item() / entries**0.5
    counts, swallowed, squares = [0] * len(thresholds), 0, 0.0
    for old, change in changes(weight, delta):
        size = change.abs()
        for i, threshold in enumerate(thresholds):
            counts[i] += int((size < threshold * rms).sum())
        swallowed += int((_bf16(old + change) == _bf16(old)).sum())
        squares += change.square().sum().item()
    below = {t: count / entries for t, count in zip(thresholds, counts, strict=True)}
    relative = (squares / entries) ** 0.5 / rms if rms > 0 else float("nan")
    return Sparsity(below, swallowed / entries, relative, entries)


def _bf16(values: Tensor) -> Tensor:
    return values.float().bfloat16()


def _together(modules: Mapping[str, Sparsity], thresholds: Sequence[float]) -> Sparsity:
    entries = sum(part.entries for part in modules.values())

    def mean(values: Mapping[str, float]) -> float:
        return sum(values[name] * part.entries for name, part in modules.items()) / max(1, entries)

    return Sparsity(
        {t: mean({name: part.below[t] for name, part in modules.items()}) for t in thresholds},
        mean({name: part.swallowed for name, part in modules.items()}),
        mean({name: part.relative**2 for name, part in modules.items()}) ** 0.5,
        entries,
    )
