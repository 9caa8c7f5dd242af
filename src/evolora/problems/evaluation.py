"""How good members are on held-out prompts, by real decoding, with intervals; whether one is better."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from evolora.errors import ProtocolError, TaskError
from evolora.problems.answers import render
from evolora.problems.problem import judge, refuse_unusable
from evolora.problems.reward import Reward
from evolora.stats import Interval, mean_interval, paired_difference
from evolora.tasks.task import Example

if TYPE_CHECKING:
    from evolora.engine import Engine
    from evolora.engine.engine import Members


class Score(NamedTuple):
    """The mean reward of ``n`` judged prompts and its 95 % interval."""

    accuracy: float
    ci: Interval
    n: int

    def as_dict(self) -> dict[str, Any]:
        """Plain data; numbers that do not exist are None."""
        return {"accuracy": _plain(self.accuracy), "ci": [_plain(end) for end in self.ci], "n": self.n}


@dataclass(frozen=True)
class Evaluation:
    """One member on P prompts.

    Attributes:
        name: the member's id; ``base`` for the base itself.
        accuracy: the mean reward of the prompts that could be judged (the share of right answers, where
            rewards are 0 and 1); higher is better.
        ci: its 95 % interval over prompts.
        families: the same by family.
        correct: the reward of every prompt, NaN where it could not be judged.
        completions: what the member said, P texts.
        failed: kind to number of NaNs.
    """

    name: str
    accuracy: float
    ci: Interval
    families: dict[str, Score] = field(repr=False)
    correct: list[float] = field(repr=False)
    completions: list[str] = field(repr=False)
    failed: dict[str, int]

    @property
    def n(self) -> int:
        """How many prompts could be judged."""
        return sum(map(math.isfinite, self.correct))

    def as_dict(self) -> dict[str, Any]:
        """The summary as plain data for ``result.json``: accuracy, ci, n, families, and failed where any."""
        families = {name: score.as_dict() for name, score in self.families.items()}
        failed = {"failed": dict(self.failed)} if self.failed else {}
        return {**Score(self.accuracy, self.ci, self.n).as_dict(), "families": families, **failed}


def evaluate(
    engine: Engine,
    members: Members,
    examples: Sequence[Example],
    reward: Reward,
    max_new_tokens: int,
    seed: int = 0,
    *,
    by: str = "family",
    stop: str | None = None,
) -> list[Evaluation]:
    """Asks every member every prompt, decoding greedily, and judges the texts.

    A reward that needs scores (``logprob``) is read off them instead; the texts are still generated, to be
    shown.

    Args:
        engine: runs the base.
        members: None (the base), an adapter, a list of adapters, or a population of N.
        examples: P held-out examples.
        reward: the judge.
        max_new_tokens: how long completions may become.
        seed: of the bootstrap.
        by: what the families are: ``family``, or a column of the data (``subtask``).
        stop: what ends an answer beside the end of text (the task's ``stop``).

    Returns:
        N evaluations.

    Raises:
        TaskError: no examples, or a column that one of them does not have.
        RewardError: an answer that the reward cannot judge against.
        AdapterError: a member does not fit the base.
    """
    if not examples:
        raise TaskError("there is no prompt to evaluate on")
    groups = [_group(example, by) for example in examples]
    refuse_unusable(reward, examples, "evaluation")
    prompts = render(engine.base, examples)
    completions = engine.generate(members, prompts, max_new_tokens=max_new_tokens, stop=stop)
    evaluations = []
    if reward.needs == "score":
        values = reward.from_scores(
            engine.score(members, prompts, [e.answer for e in examples], stop=stop)
        ).tolist()
    for i, (name, said) in enumerate(zip(_names(members), completions, strict=True)):
        before = Counter(reward.failures)
        rewards = values[i] if reward.needs == "score" else judge(reward, examples, [said])[0].tolist()
        whole = _score(rewards, seed)
        families = {
            family: _score([r for r, g in zip(rewards, groups, strict=True) if g == family], seed)
            for family in sorted(set(groups))
        }
        failed = dict(Counter(reward.failures) - before)
        evaluations.append(Evaluation(name, whole.accuracy, whole.ci, families, rewards, said, failed))
    return evaluations


def difference(base: Evaluation, adapted: Evaluation, seed: int = 0) -> dict[str, Any]:
    """How much better ``adapted`` is than ``base`` on the prompts that both were judged on.

    Returns:
        ``value`` (adapted minus base), ``ci`` (95 %, paired bootstrap over prompts), ``p`` (sign flips).

    Raises:
        ProtocolError: they were not asked the same number of prompts.
    """
    if len(base.correct) != len(adapted.correct):
        raise ProtocolError(f"{len(base.correct)} and {len(adapted.correct)} prompts cannot be paired")
    pairs = zip(adapted.correct, base.correct, strict=True)
    kept = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    value, ci, p = paired_difference([a for a, _ in kept], [b for _, b in kept], seed=seed)
    return {"value": _plain(value), "ci": [_plain(end) for end in ci], "p": p}


def _score(rewards: Sequence[float], seed: int) -> Score:
    known = [r for r in rewards if math.isfinite(r)]
    mean = math.fsum(known) / len(known) if known else float("nan")
    return Score(mean, mean_interval(known, seed=seed), len(known))


def _names(members: Members) -> Sequence[str]:
    from evolora.adapters import as_population

    return ("base",) if members is None else as_population(members).ids


def _group(example: Example, by: str) -> str:
    if by == "family":
        return example.family
    if by not in example.columns:
        raise TaskError(
            f'an example has no column "{by}"',
            mend=f"group by family or by one of {', '.join(example.columns) or 'none'}",
        )
    return str(example.columns[by])


def _plain(number: float) -> float | None:
    return number if math.isfinite(number) else None
