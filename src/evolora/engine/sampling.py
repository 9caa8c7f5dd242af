"""Choosing the next token of every row from its logits.

A sample depends on (seed, member's id, prompt, which copy of the prompt, position) alone, through one uniform
number per token and the inverse of the cumulative distribution: how rows are batched never changes a draw (up
to rounding of the logits).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evolora.adapters import noise

if TYPE_CHECKING:
    from torch import Tensor


class Sampler:
    """Greedy or sampled choice for the rows of one block.

    Args:
        temperature: 0 takes the most likely token; else logits are divided by it.
        top_p: sample from the smallest set of tokens that holds this much probability.
        draws: ``[rows, steps]`` uniform numbers in [0, 1), or None where the choice is greedy.
    """

    def __init__(self, temperature: float, top_p: float, draws: Tensor | None) -> None:
        self.temperature, self.top_p, self.draws = temperature, top_p, draws

    def __call__(self, logits: Tensor, rows: Tensor, step: int) -> Tensor:
        """``[R]`` tokens for ``logits [R, V]`` of the given rows of the block."""
        import torch

        if self.draws is None:
            return logits.argmax(-1)
        probability = self.probabilities(logits)
        mass = probability.double().cumsum(-1)
        draw = self.draws[rows.cpu(), step].to(mass.device)[:, None] * mass[:, -1:]
        # right=True never lands on a token of probability zero
        return torch.searchsorted(mass, draw, right=True)[:, 0].clamp_(max=mass.shape[-1] - 1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """``[R, V]`` float32, not normalised where ``top_p`` cuts tokens off."""
        import torch

        logits = logits.float()
        # the best logit becomes 0 first, so that a temperature near 0 does not overflow
        probability = torch.softmax((logits - logits.amax(-1, keepdim=True)) / self.temperature, -1)
        if self.top_p < 1:
            ranked, where = probability.sort(-1, descending=True)
            ranked[ranked.cumsum(-1) - ranked >= self.top_p] = 0
            probability = torch.zeros_like(probability).scatter_(-1, where, ranked)
        return probability


def uniform_draws(seed: int, steps: int, rows: Sequence[tuple[str, str, int]]) -> Tensor:
    """``[rows, steps]`` numbers in [0, 1), a function of each (member's id, prompt, copy of the prompt)."""
    import numpy as np
    import torch

    drawn = [
        noise.uniform(steps, seed=seed, pair=copy, tensor=f"{member}\0{prompt}", purpose="sample")
        for member, prompt, copy in rows
    ]
    return torch.from_numpy(np.stack(drawn))
