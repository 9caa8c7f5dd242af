"""Two matrices, from one of which to the other a search has to find.

W0 ``[24, 32]`` has independent normal entries of variance 1/32. The target is at rank k from it:

    additive    W* = W0 + D,                              D of rank k with ||D|| = ||W0|| / 2
    dora        W* = m * (W0 + D) / ||W0 + D|| by row,    m = ||W0|| * exp(0.3 z), z normal
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from evolora.adapters import ModuleSpec
from evolora.adapters.noise import normal

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.adapters import Population

D_OUT, D_IN, SIZE, SPREAD = 24, 32, 0.5, 0.3
NAME, TEMPLATE = "matrix", {"matrix": ModuleSpec(D_OUT, D_IN)}


def pair(kind: str, rank: int, seed: int) -> tuple[Tensor, Tensor]:
    """W0 and W*; the seed fixes W0 and, for each rank, D: all arms meet the same pair."""
    base = draw(seed, "base", D_OUT, D_IN) / D_IN**0.5
    delta = draw(seed, f"{rank}/b", D_OUT, rank) @ draw(seed, f"{rank}/a", rank, D_IN)
    target = base + SIZE * base.norm() / delta.norm() * delta
    if kind == "dora":
        target = target / rows(target) * rows(base) * (SPREAD * draw(seed, "magnitude", D_OUT, 1)).exp()
    return base, target


def weights(population: Population, base: Tensor) -> Tensor:
    """The members' whole weights, ``[N, 24, 32]``."""
    stack = population.block(range(len(population)))[NAME]
    assert stack.a is not None
    delta = stack.b @ stack.a
    if stack.coefficient is not None:
        delta = stack.coefficient[:, None, None] * delta.repeat_interleave(
            len(stack.coefficient) // len(delta), 0
        )
    whole = base + delta + population.shared.get(NAME, 0.0)
    return whole if stack.magnitude is None else stack.magnitude[..., None] * whole / rows(whole)


def floor(kind: str, arm: str, rank: int, seed: int) -> float:
    """The least relative error that an arm can reach."""
    import torch

    base, target = pair(kind, rank, seed)
    if arm == "plain_factors":  # Eckart and Young
        left = torch.linalg.svdvals(target - base)[rank:]
    elif arm == "direction_only":  # along the target, of the base's length
        left = rows(target) - rows(base)
    elif arm == "magnitude_only":  # along the base, of the best length
        along = base / rows(base)
        left = target - (target * along).sum(1, keepdim=True) * along
    else:
        return 0.0
    return (left.norm() / (base - target).norm()).item()


def draw(seed: int, what: str, *shape: int, step: int = 0) -> Tensor:
    """Independent unit normals, the same whenever they are asked for."""
    import torch

    return torch.from_numpy(
        normal(np.empty(shape, np.float32), seed=seed, step=step, purpose=f"ladder/{what}")
    )


def rows(weight: Tensor) -> Tensor:
    """The norm of each row, ``[..., 24, 1]``."""
    return weight.norm(dim=-1, keepdim=True)
