"""How far a search went, against how far pure noise would have carried it.

A step of a strategy has the RMS ``lr sigma`` in each of d searched weights, whatever N and the rank of the
noise are; where the rewards are pure noise, its steps are independent, so that T of them are a random walk:

    ||delta|| = lr sigma sqrt(T d)        in terms of an update alpha / N sum_i z_i E_i: alpha sqrt(T d / N)

A ratio near 1 means that the length of the delta says nothing about learning: noise alone gives it. Steps
that agree add up to more (at most sqrt(T)), steps that take each other back to less.

Sources: Evolution Strategies at Scale, arXiv 2509.24372 (the update); the drift: arXiv 2601.20861.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

from evolora.diagnostics.deltas import norms, shape_of

if TYPE_CHECKING:
    from evolora.diagnostics.deltas import Deltas


@dataclass(frozen=True)
class Walk:
    """A delta against a random walk.

    Attributes:
        norm: ``||delta||`` (Frobenius, all modules).
        length: of the pure-noise random walk in all modules.
        ratio: of the two; about 1 under pure noise.
        modules: the ratio in each module, whose walk is ``length sqrt(d_m / d)`` long.
    """

    norm: float
    length: float
    ratio: float
    modules: dict[str, float]


def walk_length(step_rms: Iterable[float], parameters: int) -> float:
    """``sqrt(d sum_t rms_t^2)``: the length of a random walk.

    Args:
        step_rms: of every step, in each weight: ``lr sigma``, as both decay.
        parameters: d, the weights searched.
    """
    return sqrt(parameters * sum(rms**2 for rms in step_rms))


def alpha_walk_length(alpha: float, steps: int, parameters: int, members: int) -> float:
    """``alpha sqrt(T d / N)``: the same for the constant update ``alpha / N sum_i z_i E_i`` of N members."""
    return alpha * sqrt(steps * parameters / members)


def against_walk(deltas: Deltas, length: float) -> Walk:
    """Compares deltas with a random walk that began where they are zero.

    Args:
        deltas: of all modules that were searched.
        length: of the walk in all of them; positive.
    """
    sizes = {name: shape_of(delta)[0] * shape_of(delta)[1] for name, delta in deltas.items()}
    each, total = norms(deltas), sum(sizes.values())
    norm = sqrt(sum(value**2 for value in each.values()))
    modules = {name: each[name] / (length * sqrt(sizes[name] / total)) for name in deltas}
    return Walk(norm, length, norm / length, modules)
