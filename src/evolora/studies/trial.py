"""One search on a language model as the cell of a study: a problem, a budget, what came out on fresh prompts.

Every trial has an engine of its own, so that its ledger counts what it would cost alone. Validation and test
are outside the ledger. A search whose numbers are no longer finite is a result, not a failure: its measures
are nan, and ``catastrophic`` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from math import nan
from typing import TYPE_CHECKING, Any

from evolora.budget import Budget
from evolora.engine import Base, Engine, load_base
from evolora.errors import DivergedError
from evolora.loop import Loop
from evolora.problems import Problem, evaluate, load_reward
from evolora.problems.answers import answer_length, render
from evolora.progress import Progress
from evolora.search import make_method
from evolora.studies.random_model import RANDOM, random_base
from evolora.studies.study import Measure

if TYPE_CHECKING:
    from evolora.adapters import Adapter
    from evolora.tasks import Task

MEASURES: dict[str, Measure] = {
    "exact": Measure("share of test prompts answered right", higher_is_better=True),
    "nats": Measure("nats per answer token on the test prompts", higher_is_better=False),
    "gain": Measure("change of the share answered right", higher_is_better=True),
    "catastrophic": Measure("ends above the nats per token of its start", higher_is_better=False),
    "steps": Measure("steps within the budget"),
}
LANGUAGE: dict[str, Any] = {"model": "smollm2-135m", "targets": "all-linear"}
TINY: dict[str, Any] = LANGUAGE | {  # a smoke run: the plumbing, on a random model
    **{"model": RANDOM, "layers": "top:2", "batch": 4, "common": {"population": 8}, "flops": 5e8},
    **{"validation": 8, "test": 8},
}
CURVES = {"reward_mean": "reward", "ess": "ESS", "diversity": "diversity", "delta_norm": "norm of the delta"}


@cache
def base_of(model: str) -> Base:
    """A base, loaded once a process; ``random`` is the small random one."""
    return random_base(0) if model == RANDOM else load_base(model)


def problem_of(
    base: Base, task: Task, reward: str, seed: int, settings: Mapping[str, Any], temperature: float = 0.0
) -> Problem:
    """What is improved.

    Args:
        base: the frozen model.
        task: what is asked.
        reward: its specification.
        seed: of minibatches and samples.
        settings: ``targets``, ``layers`` and ``batch`` of them are read.
        temperature: of the completions that are judged in the search.
    """
    template = base.modules(settings["targets"], settings["layers"])
    judge = load_reward(reward)
    return Problem(
        Engine(base), task, judge, settings["batch"], seed, template=template, temperature=temperature
    )


@dataclass(frozen=True, eq=False)
class Trial:
    """A search that has ended.

    Attributes:
        problem: what it improved.
        loop: as it ended.
        adapter: what came out; None where it diverged.
    """

    problem: Problem
    loop: Loop
    adapter: Adapter | None

    def record(self) -> dict[str, Any]:
        """``steps``, ``ledger``, and the ``curves`` over forward FLOPs."""
        curves = {
            words: [[line["forward_flops"], line[key]] for line in self.loop.journal if key in line]
            for key, words in CURVES.items()
        }
        return {
            "steps": self.loop.state.step,
            "ledger": self.loop.ledger.snapshot(),
            "curves": {words: pairs for words, pairs in curves.items() if pairs},
        }

    def validated(self) -> float:
        """The mean reward of the validation prompts; nan where it diverged."""
        if self.adapter is None:
            return nan
        return self.problem.judge(self.adapter, self.problem.split("validation")).values.mean().item()

    def tested(self, start: Adapter | None = None) -> dict[str, float]:
        """``exact`` and ``nats`` on the test prompts, of the start likewise; ``gain``; ``catastrophic``.

        Args:
            start: what it began at; None is the base.
        """
        base, task = self.problem.engine.base, self.problem.task
        before = of_base(base, task) if start is None else measured(base, task, start)
        after = {"exact": nan, "nats": nan} if self.adapter is None else measured(base, task, self.adapter)
        return {
            **after,
            **{f"start_{name}": value for name, value in before.items()},
            "gain": after["exact"] - before["exact"],
            "catastrophic": float(not after["nats"] <= before["nats"]),
        }


def search(
    problem: Problem,
    method: str,
    options: Mapping[str, Any],
    budget: Budget,
    seed: int,
    start: Adapter | None = None,
) -> Trial:
    """Searches until the budget is spent."""
    made = make_method(method, **options)
    loop = Loop(problem, made, budget, None, Progress(), seed, start, None)
    try:
        loop.go()
    except DivergedError:
        return Trial(problem, loop, None)
    return Trial(problem, loop, made.adapter(loop.result))


@lru_cache(maxsize=8)
def of_base(base: Base, task: Task) -> dict[str, float]:
    """``measured`` of the base: the same for all arms of a seed."""
    return measured(base, task, None)


def measured(base: Base, task: Task, member: Adapter | None) -> dict[str, float]:
    """``exact``: the share of the test prompts answered right, decoded; ``nats`` per answer token.

    Where a task is judged by likelihood alone, as plain text is, nothing can be right: ``exact`` is nan.
    """
    engine, right = Engine(base), nan
    if task.reward != "logprob":
        exact, length = load_reward("exact"), answer_length(base, task)
        (found,) = evaluate(engine, member, task.test, exact, length, stop=task.stop)
        right = found.accuracy
    answers = [example.answer for example in task.test]
    scores = engine.score(member, render(base, task.test), answers, stop=task.stop)
    nats = -load_reward("logprob").from_scores(scores)
    return {"exact": right, "nats": nats.mean().item()}
