"""How well a strategy's estimate points along the true gradient (arXiv 1712.06564).

With n independent directions E_j of unit variance in D weights, and weights that are what a linear reward
without noise gives, ``w_j = G . E_j``, the estimate ``sum_j w_j E_j`` has, for the gradient G,

    E[estimate . G] = n |G|^2,      E|estimate|^2 = n (n - 1 + D + c) |G|^2
    E[cosine] ~ E[chi_n] / sqrt(n - 1 + D + c),      E[chi_n] ~ sqrt(n - 1/2)

where c is 2 for full-rank noise, and ``2 + (2 (d_out + d_in) + 2) / r`` for rank r (fourth moments of
Gaussian products; over modules the mean, weighted by their share of |G|^2). So it rises like the root of the
population and falls like the root of the number of weights; low rank costs next to nothing. What a run
reaches below that is lost to curvature (sigma too large), to rounding (too small) and to the reward's grain.
Descent does not need much: steps along a direction of small cosine still gain, slowly.

Source of the comparison: On the Relationship Between the OpenAI Evolution Strategy and SGD, arXiv 1712.06564.
The moments are our own derivation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, lgamma, sqrt
from typing import TYPE_CHECKING

from evolora.adapters import Population
from evolora.diagnostics.deltas import deltas_of, dense
from evolora.engine.delta_gradients import delta_gradients
from evolora.errors import ProtocolError
from evolora.problems.answers import render
from evolora.problems.reward import LogProb
from evolora.search.perturbed import AroundDelta
from evolora.search.state import Turn

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.problems import Problem
    from evolora.search import Method
    from evolora.search.state import State
    from evolora.tasks import Example

_PLAIN = {"optimiser": "sgd", "weight_decay": 0.0}  # what else moves a step away from its estimate


@dataclass(frozen=True)
class Alignment:
    """One step's estimate against the gradient of the mean log-likelihood on the same prompts.

    Attributes:
        cosine: over all modules; nan where the step was zero.
        expected: of an estimate from a linear reward without noise; nan for noise on factors.
        chance: the rms cosine of a random direction.
        own: the cosine of the estimate from the run's own reward, where the same scores give it; else None.
        modules: the cosine in each module.
        directions: n.
        reward: the mean log-likelihood, nats per token.
    """

    cosine: float
    expected: float
    chance: float
    own: float | None
    modules: dict[str, float]
    directions: int
    reward: float


def alignment(problem: Problem, method: Method, state: State, examples: Sequence[Example]) -> Alignment:
    """Estimates one step at a state, before any optimiser, and compares it with the gradient there.

    Args:
        problem: its engine scores the answers; its reward gives ``own`` where it can be read off scores.
        method: any that learns from rewards alone.
        state: where; it is not changed.
        examples: the prompts, with answers.

    Raises:
        ProtocolError: an answer is empty: there is no likelihood to differentiate.
        AdapterError: the method moves DoRA magnitudes.
    """
    if not all(example.answer.strip() for example in examples):
        raise ProtocolError("an answer is empty", where="gradient", mend="give examples with answers")
    engine, stop = problem.engine, problem.task.stop
    prompts, answers = render(engine.base, examples), [example.answer for example in examples]
    tables: list[Tensor] = []

    def judge(population: Population) -> Tensor:
        scores = engine.score(population, prompts, answers, stop=stop)
        if problem.reward.can_score and problem.reward.name != "logprob":
            tables.append(problem.reward.from_scores(scores).float())
        return LogProb().from_scores(scores).float()

    population, found = estimate(method, state, judge)
    own = estimate(method, state, lambda _: tables[0])[1] if tables else None
    pairs = engine.base.text.pairs(prompts, answers, stop)
    reward, gradient = delta_gradients(engine, dense(deltas_of(method.mean(state))), pairs)
    directions, expected = len(population), float("nan")
    if isinstance(population, AroundDelta):
        directions = population.layout.members // population.layout.group
        # values centred over one-sided members have one degree of freedom less
        free = directions if population.layout.antithetic else directions - 1
        expected = expected_cosine(gradient, free, population.noise.rank)
    return Alignment(
        cosine(found, gradient),
        expected,
        1 / sqrt(sum(value.numel() for value in gradient.values())),
        None if own is None else cosine(own, gradient),
        {name: cosine({name: found[name]}, {name: gradient[name]}) for name in gradient},
        directions,
        reward,
    )


def estimate(
    method: Method, state: State, judge: Callable[[Population], Tensor]
) -> tuple[Population, dict[str, Tensor]]:
    """The step that a method takes from a state, as changes of the weights; proportional to its estimate.

    The step is taken at the full step size, by plain gradient ascent and without decay.

    Args:
        method: learns from rewards alone.
        state: it is not changed.
        judge: rewards ``[N, P]`` of the population.

    Returns:
        The population that was judged, and module to ``[d_out, d_in]``.
    """
    plain = {name: value for name, value in _PLAIN.items() if name in type(method).model_fields}
    tried = method.model_copy(update=plain)
    start = replace(state, progress=0.0, turn=Turn())
    population = tried.ask(start)
    after, _ = tried.tell(start, judge(population))
    before, now = (dense(deltas_of(tried.mean(where))) for where in (start, after))
    return population, {name: now[name] - before[name] for name in now}


def cosine(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Of two sets of dense matrices, each taken as one vector; nan where one is zero."""
    product = sum((one[name].double() * other[name].double()).sum().item() for name in one)
    lengths = [sum(value.double().square().sum().item() for value in side.values()) for side in (one, other)]
    return product / sqrt(lengths[0] * lengths[1]) if min(lengths) > 0 else float("nan")


def expected_cosine(gradient: Mapping[str, Tensor], directions: int, rank: int) -> float:
    """The cosine that n directions reach with a linear reward without noise; see the module's text.

    Args:
        gradient: module to ``[d_out, d_in]``.
        directions: n, antithetic pairs or one-sided members.
        rank: of the noise; 0 (``DENSE``) for full rank.
    """
    squares = {name: value.double().square().sum().item() for name, value in gradient.items()}
    total, weights = sum(squares.values()), sum(value.numel() for value in gradient.values())
    if total == 0 or directions < 1:
        return float("nan")
    extra = 2.0
    if rank:
        sides = {name: 2.0 * sum(value.shape) + 2 for name, value in gradient.items()}
        extra += sum(squares[name] / total * sides[name] for name in gradient) / rank
    # sum w_j^2 is |G|^2 times a chi-square of n degrees of freedom: the mean of its root is below the root of
    # its mean where n is small
    chi = sqrt(2) * exp(lgamma((directions + 1) / 2) - lgamma(directions / 2))
    return chi / sqrt(directions - 1 + weights + extra)
