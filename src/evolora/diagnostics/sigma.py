"""Which sigma? Reward and base seen through perturbations of several sizes, before a search is paid for.

A pair of members at ``+-sigma E_j`` on P common prompts has the half difference ``d_j = (R+ - R-) / 2``.
In the local quadratic picture ``R(sigma E) = R + sigma g.E - sigma^2 / 2 E'HE``:

    total   = mean_j d_j^2                          spread^2: signal and the luck of the prompts together
    signal  = mean_j d_j(one half of P) d_j(other)  what repeats on other prompts: sigma^2 |g|^2
    harm    = R(base) - mean of R(members)          sigma^2 tr H / 2

A step of RMS ``lr sigma`` along ``1/sqrt(n) sum_j d_j E_j / spread`` gains ``lr sqrt(n) signal / spread -
lr^2 harm``: most, ``n signal^2 / (4 total harm)``, at ``lr = sqrt(n) signal / (2 spread harm)``. The sigma
whose best step gains most is recommended. One minibatch, no test prompt; a look, not a guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import TYPE_CHECKING

from evolora.diagnostics.divergence import continuations, divergences
from evolora.errors import ConfigError
from evolora.problems.answers import render
from evolora.search import AnyMethod, Strategy
from evolora.search.registry import methods

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.adapters import Adapter
    from evolora.problems import Problem

LADDER = (0.003, 0.006, 0.01, 0.02, 0.03, 0.05, 0.08)
PAIRS = 8  # tried at each sigma
PROMPTS, TOKENS = 8, 8  # what the KL to the base is measured on
LARGEST_LR = 2.0  # beyond it the quadratic picture has nothing to say


@dataclass(frozen=True)
class Rung:
    """What one sigma showed; rewards in the reward's own unit, higher is better.

    Attributes:
        sigma: standard deviation of each weight's perturbation.
        spread: rms of the pairs' half differences.
        tied: share of the pairs whose two members got the same reward.
        signal: share of ``spread^2`` that repeats on other prompts, 0 to 1.
        harm: how much lower the members' mean reward is than the centre's.
        harm_error: its standard error over members.
        kl: KL(base || member) on what the base itself says after the prompts, nats a token.
        lr: the step that would gain most, in units of sigma.
        gain: what it would gain in one step.
    """

    sigma: float
    spread: float
    tied: float
    signal: float
    harm: float
    harm_error: float
    kl: float
    lr: float
    gain: float


@dataclass(frozen=True)
class Ladder:
    """All rungs, and what they recommend.

    Attributes:
        rungs: one a sigma.
        sigma: recommended; None where no sigma moves the reward.
        lr: recommended with it.
        reason: why, in one sentence.
        options: the same as options of the method, by their names there; empty without a recommendation.
    """

    rungs: tuple[Rung, ...]
    sigma: float | None
    lr: float | None
    reason: str
    options: Mapping[str, float] = field(default_factory=dict)


def refuse_unless_swept(method: AnyMethod) -> None:
    """Refuses a method without a sigma to choose.

    Raises:
        ConfigError: it is no evolution strategy, or its members do not come in antithetic pairs.
    """
    if isinstance(method, Strategy) and method.antithetic:
        return
    if isinstance(method, Strategy):
        raise ConfigError(
            "its members do not come in antithetic pairs, whose sigma could be chosen",
            where=method.name,
            mend="set antithetic=true",
        )
    able = [name for name, kind in sorted(methods().items()) if issubclass(kind, Strategy)]
    raise ConfigError(
        "it has no sigma that a look ahead could choose", where=method.name, mend=f"use {', '.join(able)}"
    )


def sigma_ladder(
    problem: Problem,
    method: Strategy,
    seed: int = 0,
    sigmas: Sequence[float] = LADDER,
    *,
    step: int = 0,
    start: Adapter | None = None,
) -> Ladder:
    """Climbs the ladder with the method's own perturbations around its start.

    Args:
        problem: one minibatch of it is used.
        method: an evolution strategy with antithetic pairs.
        seed: of the perturbations.
        sigmas: ascending.
        step: which minibatch.
        start: the adapter that the search will start from.

    Raises:
        ConfigError: see ``refuse_unless_swept``; or the minibatch holds one prompt alone, again and again.
    """
    refuse_unless_swept(method)
    engine = problem.engine
    # a prompt that stands in both halves would repeat its own luck
    examples = list({example.text: example for example in problem.batch(step)}.values())
    if len(examples) < 2:
        raise ConfigError(
            "one prompt is too few to see what repeats on others", where="preflight", mend="give more prompts"
        )
    norms = engine.base.weight_norms(problem.template) if method.needs_norms else None
    state = method.init(problem.template, seed, start, norms)
    centre = problem.judge(method.mean(state), examples).values[0].double()
    texts = continuations(engine, render(engine.base, examples[:PROMPTS]), tokens=TOKENS, seed=seed)
    rungs, pairs, (size, length) = [], method.members(state) // 2, method.scales
    for sigma in sigmas:
        whole = method.model_copy(update={size: sigma}).ask(state)
        population = whole.select(range(min(2 * PAIRS, len(whole))))
        rewards = problem.judge(population, examples).values.double()
        kl = [
            found.from_base
            for found in divergences(engine, population.select(range(0, min(4, len(population)), 2)), texts)
        ]
        rungs.append(rung(sigma, centre, rewards, kl=sum(kl) / len(kl), pairs=pairs))
    found = recommend(rungs)
    if found.sigma is None or found.lr is None:
        return found
    return replace(found, options={size: found.sigma, length: found.lr})


def rung(
    sigma: float, centre: Tensor, rewards: Tensor, *, kl: float = float("nan"), pairs: int | None = None
) -> Rung:
    """One rung from rewards: ``centre [P]``, members ``[N, P]`` in antithetic pairs, nan = no value.

    Args:
        sigma: what the members were perturbed with.
        centre: the rewards of what they were perturbed around.
        rewards: theirs.
        kl: to be put down.
        pairs: n of the search that the step is meant for; as many as were tried if None.

    Raises:
        ConfigError: fewer than two prompts have values of all.
    """
    known = ~(rewards.isnan().any(dim=0) | centre.isnan())
    rewards, centre = rewards[:, known], centre[known]
    if rewards.shape[1] < 2:
        raise ConfigError("fewer than two prompts could be judged", where="preflight", mend="raise batch")
    half = (rewards[0::2] - rewards[1::2]) / 2
    total = half.mean(1).square().mean().item()
    both = half[:, 0::2].mean(1) * half[:, 1::2].mean(1)
    repeats = min(max(both.mean().item(), 0.0), total)
    falls = centre.mean() - rewards.mean(1)
    harm, error = falls.mean().item(), falls.std().item() / sqrt(len(falls))
    spread, pairs = sqrt(total), pairs or len(half)
    lr = gain = 0.0
    if spread > 0 and repeats > 0:
        # harm below its own error is not known to be that small
        cost = max(harm, error, 1e-12)
        lr = min(sqrt(pairs) * repeats / (2 * spread * cost), LARGEST_LR)
        gain = lr * sqrt(pairs) * repeats / spread - lr**2 * cost
    tied = (half.mean(1) == 0).double().mean().item()
    return Rung(sigma, spread, tied, repeats / total if total else 0.0, harm, error, kl, lr, gain)


def recommend(rungs: Sequence[Rung]) -> Ladder:
    """The rung whose best step gains most, with the reason in words."""
    best = max(rungs, key=lambda r: r.gain)
    if best.gain <= 0:
        moved = max(rungs, key=lambda r: r.spread)
        reason = (
            "no sigma moves the reward"
            if moved.spread == 0
            else "what the pairs differ by does not repeat on other prompts at any sigma"
        )
        mend = "; raise batch or population, or choose a reward with partial credit"
        return Ladder(tuple(rungs), None, None, reason + mend)
    reason = (
        f"at sigma {best.sigma:g} two members of a pair differ by {2 * best.spread:.3g}, {best.signal:.0%} "
        f"of its square repeats on other prompts, a perturbation costs {best.harm:.3g} on average: a step "
        f"of lr {best.lr:.2g} gains most"
    )
    return Ladder(tuple(rungs), best.sigma, best.lr, reason)
