"""Group-relative policy optimisation: policy gradients from sampled completions and their rewards alone.

Source: GRPO, DeepSeekMath (arXiv 2402.03300). G completions are sampled for each prompt. The advantage of
completion i is its reward against those of its own group, ``A_i = (r_i - mean) / (std + 1e-4)``. With the
ratio ``q = p_new(token) / p_old(token)`` each of its tokens costs

    -min(q A_i, clip(q, 1 - clip, 1 + clip_high) A_i) + kl (p_base / p_new - log(p_base / p_new) - 1)

Costs are averaged within completions first (``sequence``: GRPO), over all tokens alike (``token``: DAPO,
arXiv 2503.14476), or summed and divided by the largest possible number of tokens (``constant``: Dr. GRPO,
arXiv 2503.20783, which leaves out the division by std, too). In the first epoch on its samples q is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from evolora.search.gradient_method import PolicyMethod, PolicyProblem
from evolora.search.method import reward_metrics
from evolora.search.state import State
from evolora.search.training import FactorTraining, factors, gradient_norm, leaves_of, side

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.problems.rollouts import Rollouts

Average = Literal["sequence", "token", "constant"]
_SMALLEST_STD = 1e-4


class GRPO(FactorTraining, PolicyMethod):
    """Policy gradients of LoRA factors from groups of sampled completions."""

    name: ClassVar[str] = "grpo"
    summary: ClassVar[str] = "policy gradients from groups of sampled completions and their rewards"
    source: ClassVar[str] = "GRPO, arXiv 2402.03300; DAPO, arXiv 2503.14476; Dr. GRPO, arXiv 2503.20783"

    lr: float = Field(5e-4, ge=0, description="Largest step size.")
    samples: int = Field(8, ge=2, description="Completions of each prompt: the group.")
    temperature: float = Field(1.0, gt=0, description="Of the samples, and of the probabilities learned.")
    clip: float = Field(0.2, gt=0, le=1, description="How far below 1 a token's ratio still counts.")
    clip_high: float | None = Field(None, gt=0, description="How far above 1; as clip if not given.")
    kl: float = Field(0.0, ge=0, description="Weight of the divergence from the base.")
    epochs: int = Field(1, ge=1, description="Updates on the samples of a step.")
    normalise: bool = Field(True, description="Divide advantages by the group's standard deviation.")
    average: Average = Field(
        "token", description="What weighs alike: completions (sequence), tokens, or tokens over a constant."
    )
    largest_gradient: float = Field(1.0, gt=0, description="Largest global norm of the gradient.")
    micro_batch: int = Field(
        16, ge=0, description="Completions in one backward pass, gradients summed up; 0: all at once."
    )

    def _step(self, state: State, problem: PolicyProblem, progress: float) -> tuple[State, dict[str, float]]:
        import torch

        rollouts = problem.rollout(self.adapter(state), self.samples, state.step, self.temperature)
        rewards = torch.where(rollouts.rewards.isfinite(), rollouts.rewards.float(), torch.nan)
        advantages, counted = group_advantages(rewards, normalise=self.normalise)
        lr, spread = self._lr(state, progress), bool(advantages.any())
        parts = self._parts(rollouts, advantages, counted) if spread else []
        tokens = float(rollouts.lengths[counted].sum())
        current, seen = state, []
        for _ in range(self.epochs if spread else 0):
            leaves = leaves_of(factors(current))
            sums = [self._backward(leaves, problem, rollouts, part) for part in parts]
            loss, divergence, clipped = (sum(column) for column in zip(*sums, strict=True))
            seen.append((loss, divergence / tokens, clipped / tokens, gradient_norm(leaves)))
            if not (isfinite(loss) and isfinite(seen[-1][-1])):
                current = state
                break
            tensors = self._descend(leaves, current.tensors, lr, self.largest_gradient)
            current = replace(current, tensors=tensors)
        following = state.after(current.tensors, state.numbers, progress)
        means = [fmean(column) for column in zip(*seen, strict=True)] or [0.0, float("nan"), 0.0, 0.0]
        return following, {
            **reward_metrics(rewards.T),
            **dict(zip(("loss", "kl", "clip_fraction", "grad_norm"), means, strict=True)),
            "completion_length": rollouts.lengths.double().mean().item(),
            "lr": lr,
            **self._lengths(state, following),
            "no_spread": float(not spread),
            "not_finite": float(spread and current is state),
        }

    def _parts(self, rollouts: Rollouts, advantages: Tensor, counted: Tensor) -> list[_Part]:
        """The completions that have a gradient, one backward pass each part."""
        weights = row_weights(rollouts.lengths, counted, self.average, rollouts.limit)
        # without a divergence to keep small, a completion without an advantage has none
        rows = (counted if self.kl > 0 else advantages != 0).nonzero()[:, 0].tolist()
        size = self.micro_batch or len(rows)
        chosen = [rows[first : first + size] for first in range(0, len(rows), size)]
        return [_Part(some, advantages[some], weights[some], rollouts.lengths[some]) for some in chosen]

    def _backward(
        self, leaves: Mapping[str, Tensor], problem: PolicyProblem, rollouts: Rollouts, part: _Part
    ) -> tuple[float, float, float]:
        """Adds to the leaves' gradients; returns loss, divergence and clipped tokens, each summed up."""
        import torch

        found = problem.log_probs(side(leaves, "a"), side(leaves, "b"), self.scale, rollouts, part.rows)
        if part.old is None:
            part.old = found.detach()
            if self.kl > 0:
                with torch.no_grad():
                    part.base = problem.log_probs({}, {}, self.scale, rollouts, part.rows)
        where = found.device
        gain, clipped = clipped_gain(
            found - part.old,
            part.advantages.to(where)[:, None],
            self.clip,
            self.clip if self.clip_high is None else self.clip_high,
        )
        there = torch.arange(found.shape[1], device=where) < part.lengths.to(where)[:, None]
        costs, divergence = -gain, float("nan")
        if part.base is not None:
            surplus = divergence_from(part.base, found)
            costs, divergence = costs + self.kl * surplus, surplus[there].sum().item()
        loss = (part.weights.to(where)[:, None] * torch.where(there, costs, 0.0)).sum()
        loss.backward()
        return loss.item(), divergence, clipped[there].sum().item()


@dataclass(eq=False)
class _Part:
    """Completions of one backward pass; the first epoch notes how likely their tokens were."""

    rows: list[int]
    advantages: Tensor
    weights: Tensor
    lengths: Tensor
    old: Tensor | None = None
    base: Tensor | None = None


def group_advantages(rewards: Tensor, *, normalise: bool) -> tuple[Tensor, Tensor]:
    """What each completion got above its group's mean.

    Args:
        rewards: ``[P, G]``, NaN where there is no value.
        normalise: divide by the group's standard deviation (with G - 1) + 1e-4.

    Returns:
        Advantages ``[P * G]``, zero in groups whose rewards are all the same; and which completions count:
        those with a value in a group of two values or more.
    """
    import torch

    valued = ~rewards.isnan()
    counted = valued & (valued.sum(1, keepdim=True) > 1)
    table = torch.where(counted, rewards.double(), 0.0)
    number = counted.sum(1, keepdim=True).clamp(min=2)
    centred = torch.where(counted, table - table.sum(1, keepdim=True) / number, 0.0)
    if normalise:
        std = (centred.square().sum(1, keepdim=True) / (number - 1)).sqrt()
        centred = centred / (std + _SMALLEST_STD)
    inf = float("inf")
    best, worst = torch.where(counted, table, -inf).amax(1), torch.where(counted, table, inf).amin(1)
    spread = (best > worst)[:, None]  # the mean of equal numbers may differ from them by rounding
    return torch.where(spread, centred, 0.0).float().flatten(), counted.flatten()


def row_weights(lengths: Tensor, counted: Tensor, average: Average, limit: int) -> Tensor:
    """What a token of each completion weighs in the loss, ``[P * G]``; see the module's docstring."""
    import torch

    rows, tokens = int(counted.sum()), int(lengths[counted].sum())
    each = {
        "sequence": 1 / (lengths * max(1, rows)),
        "token": torch.full(lengths.shape, 1 / max(1, tokens)),
        "constant": torch.full(lengths.shape, 1 / (max(1, rows) * limit)),
    }[average]
    return torch.where(counted, each, 0.0)


def clipped_gain(log_ratio: Tensor, advantages: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """``min(q A, clip(q) A)`` of each token, and where the clipping took its gradient away."""
    import torch

    ratio = log_ratio.exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    return gain, ((ratio < 1 - low) & (advantages < 0)) | ((ratio > 1 + high) & (advantages > 0))


def divergence_from(base: Tensor, found: Tensor) -> Tensor:
    """``p_base / p - log(p_base / p) - 1`` of each token (k3): estimates KL(p, p_base) without a bias."""
    return (base - found).expm1() - (base - found)
