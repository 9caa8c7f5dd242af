"""Rollouts: the completions that a policy sampled, as tokens, and what they got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rollouts:
    """G sampled completions of each of P prompts. Row ``p * G + g`` is completion g of prompt p.

    Attributes:
        rewards: ``[P, G]`` float32, higher is better, NaN where there is no value.
        pairs: P * G prompts with their completions, as token ids; the token that ended a completion belongs
            to it.
        temperature: they were sampled at.
        limit: the most tokens that a completion may have.
    """

    rewards: Tensor
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
    temperature: float
    limit: int

    @cached_property
    def lengths(self) -> Tensor:
        """``[P * G]``, the tokens of each completion."""
        import torch

        return torch.tensor([len(completion) for _, completion in self.pairs])
