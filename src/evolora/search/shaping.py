"""Fitness shaping: rewards ``[N, P]`` of N members on P common prompts become one fitness a member.

    x[i, p] = reward[i, p] - mean over members of reward[:, p]        (prompts differ in difficulty, members
    do not)

    centred     sum_p x[i, p] / (sqrt(P_i) s),  s = global rms of x: unit variance under independent noise
                whatever P is, up to sqrt(P) times larger where the prompts agree (per-prompt centring with a
                global standard deviation, as in Evolution Strategies at the Hyperscale, arXiv 2511.16652)
    zscore      y / rms(y), y[i] = mean_p x[i, p]
    ranks       centred ranks of y in [-1/2, 1/2], ties averaged (Wierstra et al., arXiv 1106.4487; Salimans
                et al., arXiv 1703.03864)
    raw         the mean reward: no centring, no scale; for rewards whose unit means something
    pair_rms    antithetic pairs only: d = mean over the prompts that both have of reward(+) - reward(-);
                fitness = +-d / (sqrt(2) rms(d)), so that the difference over sqrt(2) has rms 1

A value that is missing (nan) leaves its prompt out for that member, and in antithetic mode for its pair;
centring per prompt keeps members with different prompts comparable. A member without any value (and its pair)
has fitness 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Literal, get_args

from evolora.errors import ConfigError, ProtocolError

if TYPE_CHECKING:
    from torch import Tensor

Shaping = Literal["pair_rms", "centred", "zscore", "ranks", "raw"]
_RESOLUTION = 2.0**-40  # differences below this part of the largest reward are rounding, not spread


@dataclass(frozen=True, eq=False)
class Fitness:
    """What shaping makes of a table of rewards.

    Attributes:
        values: ``[N]`` float32, higher is better; 0 for a member that takes no part, all 0 without spread.
        active: ``[N]`` bool, the members that take part.
        no_spread: nothing tells the members apart: there is nothing to learn from.
        noise_rms: the rms that pure noise would give one direction's weight (``values`` of one-sided members,
            ``(values+ - values-) / sqrt(2)`` of a pair). An update divides by it, so that its size under pure
            noise does not depend on the kind of shaping. 1 for ``raw``, whose scale is the user's.
    """

    values: Tensor
    active: Tensor
    no_spread: bool
    noise_rms: float


def shape(rewards: Tensor, kind: Shaping = "centred", *, antithetic: bool = False) -> Fitness:
    """Shapes rewards ``[N, P]`` (nan or infinite = no value, higher is better) into one fitness a member.

    Args:
        rewards: one row a member, one column a prompt.
        kind: see the module's text.
        antithetic: members 2j and 2j + 1 are a pair: what one of them lacks is left out for both.

    Raises:
        ConfigError: an unknown kind, or ``pair_rms`` without pairs.
        ProtocolError: the shape is not ``[N, P]``, or N is odd for pairs.
    """
    import torch

    if kind not in get_args(Shaping):
        raise ConfigError(f"unknown shaping {kind!r}", mend=f"known: {', '.join(get_args(Shaping))}")
    if kind == "pair_rms" and not antithetic:
        raise ConfigError("pair_rms needs antithetic pairs", mend="use centred, zscore or ranks")
    if rewards.ndim != 2 or rewards.shape[1] == 0 or (antithetic and len(rewards) % 2):
        raise ProtocolError(
            f"rewards of shape {list(rewards.shape)}", mend="give [N, P], N even for antithetic pairs"
        )

    table = rewards.double()
    valued = table.isfinite()
    if antithetic:
        valued = valued.view(-1, 2, table.shape[1]).all(dim=1).repeat_interleave(2, dim=0)
    active = valued.any(dim=1)
    table = torch.where(valued, table, 0.0)
    scale = table.abs().max().item() if active.any() else 0.0

    if kind == "pair_rms":
        difference = _rounded(_mean(table[0::2] - table[1::2], valued[0::2]), scale)
        values = torch.stack([difference, -difference], dim=1).flatten()
        values = _over(values, sqrt(2) * _rms(values[active]))
        return _fitness(values, active, spread=bool(values.any()), noise_rms=1.0)
    score = _rounded(_scores(table, valued, kind), scale)
    apart = score[active]
    spread = len(apart) > 1 and bool((apart != apart[0]).any())
    values = score
    if kind == "centred":
        values = _over(score, _rms(_centred(table, valued)[valued]))
    elif kind == "zscore":
        values = _over(score, _rms(apart))
    elif kind == "ranks":
        values = _ranks(score, active)
    return _fitness(values, active, spread=spread, noise_rms=_noise_rms(kind, len(apart), antithetic))


def mean_rewards(rewards: Tensor) -> Tensor:
    """The mean reward of each member as ``raw`` counts it, with all digits: ``[N]`` float64.

    Args:
        rewards: ``[N, P]``, nan or infinite = no value.

    Returns:
        nan for a member without any value; members that are rewarded alike are equal to the last bit.
    """
    import torch

    table = rewards.double()
    valued = table.isfinite()
    table = torch.where(valued, table, 0.0)
    score = _rounded(_scores(table, valued, "raw"), table.abs().max().item())
    return torch.where(valued.any(dim=1), score, torch.nan)


def _fitness(values: Tensor, active: Tensor, *, spread: bool, noise_rms: float) -> Fitness:
    return Fitness((values * (active & spread)).float(), active, not spread, noise_rms)


def _scores(table: Tensor, valued: Tensor, kind: Shaping) -> Tensor:
    count = valued.sum(dim=1).clamp(min=1)
    if kind in ("raw", "ranks") and bool(valued.all()):
        return table.sum(dim=1) / count  # what is tied in the rewards stays tied to the last bit
    total = _centred(table, valued).sum(dim=1)
    if kind == "centred":
        return total / count.sqrt()
    level = _mean(table.T, valued.T)[valued.any(dim=0)].mean() if kind == "raw" and valued.any() else 0.0
    return total / count + level


def _centred(table: Tensor, valued: Tensor) -> Tensor:
    return (table - _mean(table.T, valued.T)) * valued


def _mean(table: Tensor, valued: Tensor) -> Tensor:
    return (table * valued).sum(dim=1) / valued.sum(dim=1).clamp(min=1)


def _rounded(score: Tensor, scale: float) -> Tensor:
    unit = scale * _RESOLUTION
    return (score / unit).round() * unit if unit > 0 else score


def _rms(values: Tensor) -> float:
    return values.square().mean().sqrt().item() if len(values) else 0.0


def _over(values: Tensor, divisor: float) -> Tensor:
    return values / divisor if divisor > 0 else values


def _ranks(score: Tensor, active: Tensor) -> Tensor:
    import torch

    values = torch.zeros_like(score)
    if (count := int(active.sum())) > 1:
        _, group, size = score[active].unique(return_inverse=True, return_counts=True)
        middle = (size.cumsum(0) - (size + 1) / 2).double()  # the mean rank, from 0, of each group of ties
        values[active] = middle[group] / (count - 1) - 0.5
    return values


def _noise_rms(kind: Shaping, members: int, antithetic: bool) -> float:
    if kind == "raw" or members < 2:
        return 1.0
    rms = sqrt((members + 1) / (12 * (members - 1))) if kind == "ranks" else 1.0
    # values that sum to zero over N members differ by slightly more than independent ones
    return rms * sqrt(members / (members - 1)) if antithetic else rms
