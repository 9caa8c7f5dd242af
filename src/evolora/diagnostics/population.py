"""How much of a population is left: effective size, diversity, lineages.

For members with normalised weights w and deltas D:

    effective sample size    1 / sum_i w_i^2: N if all weigh alike, 1 if one has it all
    diversity                mean over pairs of ||D_i - D_j|| (Frobenius, in the space of deltas)
    distinct lineages        how many members of the first generation have descendants in the last
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evolora.adapters import Adapter, Factors, Population
from evolora.adapters.geometry import gram
from evolora.errors import ProtocolError

if TYPE_CHECKING:
    from torch import Tensor

_COLUMNS = 65_536  # entries of dense members in float64 at once


def effective_sample_size(weights: Sequence[float] | Tensor) -> float:
    """``(sum w)^2 / sum w^2``, between 1 and N.

    Raises:
        ProtocolError: a negative weight, or none that is positive.
    """
    import torch

    w = torch.as_tensor(weights, dtype=torch.float64)
    if not len(w) or bool((w < 0).any()) or not float(w.sum()) > 0:
        raise ProtocolError("weights must not be negative, and one of them positive")
    return float(w.sum().square() / w.square().sum())


def distances(members: Population | Sequence[Adapter]) -> Tensor:
    """``||D_i - D_j||`` of all pairs: ``[N, N]``, float64, from factors alone; a shared delta cancels.

    For DoRA it is the distance of ``B A``. Near twins are resolved to 1e-8 of their norm.
    """
    products = _products(members) if isinstance(members, Population) else gram(list(members))
    squares = products.diagonal()
    return (squares[:, None] + squares - 2 * products).clamp_min(0).sqrt()


def diversity(members: Population | Sequence[Adapter]) -> float:
    """The mean pairwise distance in the space of deltas; 0 for a single member."""
    table = distances(members)
    count = len(table)
    return float(table.sum() / (count * (count - 1))) if count > 1 else 0.0


def distinct_lineages(parents: Sequence[Sequence[int]]) -> list[int]:
    """How many founders have descendants after each generation.

    Args:
        parents: one row a generation; ``parents[g][i]`` is the index, in the generation before, of the member
            that member i came from.

    Raises:
        ProtocolError: a parent that does not exist.
    """
    founders: list[int] | None = None
    counts = []
    for row in parents:
        before = list(range(max(row, default=-1) + 1)) if founders is None else founders
        if any(not 0 <= parent < len(before) for parent in row):
            raise ProtocolError(f"a parent outside the {len(before)} members of the generation before")
        founders = [before[parent] for parent in row]
        counts.append(len(set(founders)))
    return counts


def _products(population: Population) -> Tensor:
    """Inner products of what the members add to the shared delta, module by module."""
    import torch

    count = len(population)
    total = torch.zeros(count, count, dtype=torch.float64)
    for name, stack in population.block(range(count)).items():
        group = count // len(stack.b)
        signs = [1.0] * count if stack.coefficient is None else stack.coefficient.tolist()
        if stack.a is None:
            rows = stack.b.flatten(1)
            inner = torch.zeros(len(rows), len(rows), dtype=torch.float64)
            for first in range(0, rows.shape[1], _COLUMNS):
                block = rows[:, first : first + _COLUMNS].double()
                inner.addmm_(block, block.T)
        else:
            parts = zip(stack.a, stack.b, strict=True)
            inner = gram([Adapter({name: Factors(a, b)}) for a, b in parts])
        owner = torch.arange(count) // group
        sizes = torch.tensor(signs, dtype=torch.float64)
        total += sizes[:, None] * sizes * inner[owner][:, owner]
    return total
