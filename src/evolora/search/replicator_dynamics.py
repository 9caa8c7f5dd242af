"""The arithmetic of replicator dynamics on plain float64 vectors, one entry a candidate.

    memory      m_i <- (1 - alpha) m_i + alpha G_i,                alpha = 1 - exp(-lambda_M dt)
    selection   log w_i <- log w_i + kappa dt (m_i - rbar),        rbar = sum_j w_j m_j; then normalised
    resampling  N offspring in proportion to w, if 1 / sum_i w_i^2 < N / 3

A candidate without a reward takes no part in its step. Its memory moves as the others' did on average, so
that it is neither favoured nor punished for a minibatch that it has not seen (an easy one, say, which raises
all memories), and its log-weight does not grow or shrink against the mean.

Source: Theory of collective learning in populations of adaptive agents, arXiv 2607.02171. A memory is an
exponential average; selection is the replicator equation, exact for memories that stand still in a step.
"""

from __future__ import annotations

from math import expm1
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Resampling = Literal["multinomial", "systematic"]
LEAST_SHARE = 3  # resampled where fewer than a third of the candidates count
ROUNDING = 1e-12  # exactly a third stays, though exp(log(1 / 3)) is not quite 1 / 3


def uniform_weights(members: int) -> Tensor:
    """Log-weights ``[N]`` of 1 / N each."""
    import torch

    return torch.zeros(members, dtype=torch.float64).log_softmax(0)


def remember(memory: Tensor, rewards: Tensor, log_weights: Tensor, forgetting: float) -> Tensor:
    """The memories after one step.

    Args:
        memory: ``[N]``.
        rewards: ``[N]``, higher is better; nan for a candidate without one.
        log_weights: ``[N]``; they weigh the mean move that candidates without a reward take.
        forgetting: ``lambda_M dt``.

    Returns:
        ``[N]``; the memory itself where no candidate has a reward.
    """
    import torch

    moved = -expm1(-forgetting) * (rewards - memory)
    known = ~moved.isnan()
    if not known.any():
        return memory
    common = (log_weights[known].softmax(0) * moved[known]).sum()
    return memory + torch.where(known, moved, common)


def select(log_weights: Tensor, memory: Tensor, strength: float, part: Tensor | None = None) -> Tensor:
    """The normalised log-weights after one step of selection.

    Args:
        log_weights: ``[N]``, normalised.
        memory: ``[N]``.
        strength: ``kappa dt``.
        part: ``[N]`` bool, the candidates that take part; all if None. The mean memory is theirs.
    """
    import torch

    part = torch.ones_like(memory, dtype=torch.bool) if part is None else part
    if not part.any():
        return log_weights
    mean = (log_weights[part].softmax(0) * memory[part]).sum()
    growth = torch.where(part, strength * (memory - mean), 0.0)
    return (log_weights + growth).log_softmax(0)


def effective_size(weights: Tensor) -> float:
    """``1 / sum_i w_i^2``: how many candidates count, from 1 to N."""
    return 1 / weights.square().sum().item()


def too_few(weights: Tensor) -> bool:
    """Whether fewer than a third of the candidates count, so that the population is resampled."""
    return effective_size(weights) < len(weights) / LEAST_SHARE * (1 - ROUNDING)


def offspring(weights: Tensor, uniforms: Tensor, how: Resampling = "multinomial") -> Tensor:
    """The parent of each of N offspring; N w_i of them descend from candidate i on average.

    Args:
        weights: ``[N]``, not negative.
        uniforms: ``[N]`` in [0, 1): one a draw. Systematic resampling uses the first alone: it reads the
            distribution at N even distances, so that a candidate has N w_i offspring up to one.
        how: independent draws, or systematic.

    Returns:
        ``[N]`` int64.
    """
    import torch

    if how == "systematic":
        uniforms = (torch.arange(len(weights), dtype=torch.float64) + uniforms[0]) / len(weights)
    edges = weights.cumsum(0)
    below_one = uniforms.clamp(max=1 - 2.0**-53)  # the sum above can round to 1
    return torch.searchsorted(edges / edges[-1], below_one, right=True)
