"""What an adaptation cost elsewhere: a task that was not trained on, before and after (forgetting).

Evolution strategies lose prior skills where gradients on the same rewards keep them (arXiv 2601.20861). The
prior task is asked before and after on the same held-out prompts, greedily; the difference is paired. The
log-likelihood of its answers, in nats per token, moves long before an answer flips.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evolora.errors import ConfigError
from evolora.problems import Problem, answer_length, difference, evaluate, load_reward
from evolora.problems.answers import render
from evolora.problems.reward import LogProb
from evolora.stats import paired_difference
from evolora.tasks import Task, load_task

if TYPE_CHECKING:
    from evolora.adapters import Adapter
    from evolora.engine import Engine
    from evolora.problems import Reward

# the bundled model answers them with the one solved example in the prompt, far from both 0 and 1: exact match
# of the base on the first 100 test prompts .42 and .26 (continents, world: .02)
PRIORS = ("things", "animals")
PROMPTS = 200


@dataclass(frozen=True)
class Retention:
    """A prior task before and after.

    Attributes:
        task: its name.
        reward: what judged.
        before: the base: accuracy, ci, n, families.
        after: the adapter, the same.
        difference: after minus before: value, ci (95 %, paired), p; below 0 something was lost.
        log_likelihood: ``before`` and ``after``, nats per answer token, and their ``difference``; None where
            the task has no answers.
    """

    task: str
    reward: str
    before: dict[str, Any]
    after: dict[str, Any]
    difference: dict[str, Any]
    log_likelihood: dict[str, Any] | None


def prior_task(task: Task, name: Task | str | None = None, seed: int = 0) -> Task:
    """The task whose retention is measured.

    Args:
        task: the one that is adapted to.
        name: a task, or what ``load_task`` takes; None chooses the first of ``PRIORS`` that is another one.
        seed: as for ``load_task``.

    Raises:
        TaskError: no task of that name.
        ConfigError: it is the task that is adapted to.
    """
    if name is None:
        name = next(prior for prior in PRIORS if prior != task.name)
    prior = name if isinstance(name, Task) else load_task(name, seed=seed)
    if prior.name == task.name:
        raise ConfigError(
            f"{prior.name} is the task that is learned", where="retain", mend="name another, or leave it out"
        )
    return prior


def check_prior(engine: Engine, task: Task) -> None:
    """Tokenises what retention will ask, so that nothing stops it after a long search.

    Raises:
        InputError: a prompt is too long, or an answer cannot be judged against.
    """
    judge = load_reward(task.reward)
    try:
        Problem(engine, task, judge).check_texts()
    finally:
        judge.close()


def retained(
    engine: Engine,
    adapter: Adapter,
    task: Task,
    *,
    reward: Reward | None = None,
    prompts: int = PROMPTS,
    seed: int = 0,
) -> Retention:
    """Asks base and adapter the first test prompts of a task.

    Args:
        engine: over the base.
        adapter: what came out of the adaptation.
        task: the prior task.
        reward: the judge; the task's own if None.
        prompts: how many, at most.
        seed: of the bootstrap.

    Raises:
        RewardError: an answer that the reward cannot judge against.
        AdapterError: the adapter does not fit the base.
    """
    examples = task.test[:prompts]
    judge = reward or load_reward(task.reward)
    length = answer_length(engine.base, task)
    try:
        (before,) = evaluate(engine, None, examples, judge, length, seed, stop=task.stop)
        (after,) = evaluate(engine, adapter, examples, judge, length, seed, stop=task.stop)
    finally:
        if reward is None:
            judge.close()
    likelihood = None
    if all(example.answer.strip() for example in examples):
        texts, answers = render(engine.base, examples), [example.answer for example in examples]
        found = [
            LogProb().from_scores(engine.score(members, texts, answers, stop=task.stop))[0].double()
            for members in (None, adapter)
        ]
        known = found[0].isfinite() & found[1].isfinite()
        old, new = found[0][known].tolist(), found[1][known].tolist()
        value, ci, p = paired_difference(new, old, seed=seed)
        likelihood = {
            "before": sum(old) / max(1, len(old)),
            "after": sum(new) / max(1, len(new)),
            "difference": {"value": value, "ci": list(ci), "p": p},
        }
    return Retention(
        task.name,
        judge.name,
        before.as_dict(),
        after.as_dict(),
        difference(before, after, seed),
        likelihood,
    )
