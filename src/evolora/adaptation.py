"""The main job: a method improves an adapter on a problem until a budget is spent.

    state = method.init(template, seed)
    until the budget is spent:
        population = method.ask(state)
        rewards = problem.evaluate(population, step)
        state, metrics = method.tell(state, rewards, progress)
    adapter = method.adapter(state)

Then base and adapter answer the test prompts, which nothing has seen before. With a run folder every step is
journalled, the state is saved every half minute, and a run that was killed goes on bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from evolora.budget import Budget
from evolora.diagnostics import Finished, check_prior, prior_task
from evolora.diagnostics import diagnose as run_diagnostics
from evolora.engine import Base, Engine, Ledger, load_base
from evolora.errors import ConfigError
from evolora.guard import Watch
from evolora.loop import Loop
from evolora.problems import Evaluation, Problem, Reward, difference, evaluate, load_reward
from evolora.progress import Progress
from evolora.runs import RunFolder
from evolora.search import AnyMethod, Eggroll, GradientMethod, PolicyMethod, make_method
from evolora.tasks import Task, load_task
from evolora.version import __version__

if TYPE_CHECKING:
    from evolora.adapters import Adapter
    from evolora.engine.structure import Layers, Targets


@dataclass(frozen=True, eq=False)
class Adaptation:
    """What an adaptation leaves.

    Attributes:
        adapter: the adapter, with its provenance.
        base: the base on the test prompts.
        adapted: the adapter on the same.
        difference: adapted minus base: ``value``, ``ci`` (95 %, paired), ``p``.
        ledger: what the search spent; testing is not in it.
        testing: what testing spent.
        journal: one mapping a step.
        stopped: the budget that ended it.
        steps: how many steps were done.
        diagnostics: what ``evolora.diagnostics.diagnose`` found, with a ledger of its own; None unless asked.
        population: what stands beside the adapter, by name (``members_to_export`` of the method).
        start: the adapter that the search began at, on the same prompts; None where it began at the base.
        over_start: adapted minus start, as ``difference``; None likewise.
        validation: what the guard saw: ``looks`` (step and mean validation reward of each) and ``kept``, the
            step whose state the adapter is; None without a guard.
    """

    adapter: Adapter
    base: Evaluation
    adapted: Evaluation
    difference: dict[str, Any]
    ledger: Ledger
    testing: Ledger
    journal: list[dict[str, Any]] = field(repr=False)
    stopped: str
    steps: int
    diagnostics: dict[str, Any] | None = field(default=None, repr=False)
    population: Mapping[str, Adapter] = field(default_factory=dict, repr=False)
    start: Evaluation | None = None
    over_start: dict[str, Any] | None = None
    validation: dict[str, Any] | None = None


def adapt(
    base: Base | str,
    task: Task | str,
    *,
    method: AnyMethod | str | None = None,
    reward: Reward | str | None = None,
    budget: Budget | None = None,
    targets: Targets = "all-linear",
    layers: Layers = None,
    batch: int = 32,
    seed: int = 0,
    start: Adapter | None = None,
    export_rank: int | None = None,
    watch: Watch | None = None,
    diagnose: bool = False,
    retain: Task | str | None = None,
    progress: Progress | None = None,
) -> Adaptation:
    """Adapts a base to a task and tests the result, in memory: the main job as one call.

    Args:
        base: a base, or what ``load_base`` takes.
        task: a task, or what ``load_task`` takes.
        method: any of ``evolora.search``, or its name for the defaults; EGGROLL if None.
        reward: a reward, or what ``load_reward`` takes; the task's own if None.
        budget: ends the search; 40 steps if None.
        targets: which modules are adapted, as ``Base.modules`` takes them.
        layers: in which layers; all if None.
        batch: prompts a step.
        seed: every random choice follows from it.
        start: an adapter to begin at.
        export_rank: the rank of the adapter; the method's own choice if None.
        watch: look at validation prompts on the way, keep the best state, stop on a plateau.
        diagnose: afterwards, say what changed (``evolora.diagnostics``).
        retain: the prior task that diagnostics ask before and after; a built-in one if None.
        progress: told of every step.

    Raises:
        EvoloraError: anything about the input that is wrong, in one line.
    """
    base = load_base(base) if isinstance(base, str) else base
    task = load_task(task, seed=seed) if isinstance(task, str) else task
    if retain is not None and not diagnose:
        raise ConfigError("retain needs diagnose: nothing is asked without it")
    prior = prior_task(task, retain, seed) if diagnose else None
    judge = load_reward(reward or task.reward)
    try:
        template = base.modules(targets, layers)
        problem = Problem(Engine(base), task, judge, batch, seed, template=template)
        return improve(
            problem,
            make_method(method) if isinstance(method, str) else method or Eggroll(),
            budget or Budget(steps=40),
            seed=seed,
            start=start,
            export_rank=export_rank,
            watch=watch,
            prior=prior,
            progress=progress,
        )
    finally:
        judge.close()


def improve(
    problem: Problem,
    method: AnyMethod,
    budget: Budget,
    *,
    seed: int = 0,
    start: Adapter | None = None,
    export_rank: int | None = None,
    watch: Watch | None = None,
    prior: Task | None = None,
    run: RunFolder | None = None,
    progress: Progress | None = None,
) -> Adaptation:
    """Searches until the budget is spent, then tests the adapter that comes out against the base.

    Args:
        problem: what is improved; its test split is touched once, at the end.
        method: any of ``evolora.search``.
        budget: ends the search.
        seed: every random choice of the method follows from it.
        start: an adapter to begin at.
        export_rank: the rank of the adapter; the method's own choice if None.
        watch: look at validation prompts on the way, keep the best state, stop on a plateau.
        prior: the task whose retention is measured (``prior_task``); without one nothing is diagnosed.
        run: an open run folder; None keeps everything in memory.
        progress: told of every step.

    Raises:
        RewardError: nothing could be judged at the first step.
        KeyboardInterrupt: SIGINT or SIGTERM; with a run folder the state is saved first.
    """
    progress = progress or Progress()
    problem.check_texts(trains=isinstance(method, GradientMethod), samples=isinstance(method, PolicyMethod))
    if prior is not None:
        check_prior(problem.engine, prior)
    search = Loop(problem, method, budget, run, progress, seed, start, watch)
    search.go()
    adapter = _sign(method.adapter(search.result, rank=export_rank), problem)
    if run is not None:
        adapter.save(run.adapter_path, overwrite=True)
    members = [None, adapter] if start is None else [None, adapter, start]
    (base, adapted, *others), testing = _test(problem, members, progress)
    begun = others[0] if others else None
    diagnostics = None
    if prior is not None:
        ended = (search.method, search.result, adapter, search.journal)
        diagnostics = run_diagnostics(Finished(problem, *ended, prior, start, seed), progress)
    return Adaptation(
        adapter,
        base,
        adapted,
        difference(base, adapted),
        search.ledger,
        testing,
        search.journal,
        search.stopped,
        search.state.step,
        diagnostics,
        {
            name: _sign(member, problem)
            for name, member in search.method.members_to_export(search.result).items()
        },
        begun,
        None if begun is None else difference(begun, adapted),
        search.looked,
    )


def _sign(adapter: Adapter, problem: Problem) -> Adapter:
    """Adds what the adapter was made on and for."""
    base = problem.engine.base
    made = {
        "base_fingerprint": base.fingerprint,
        "task": problem.task.name,
        "task_fingerprint": problem.task.fingerprint,
        "reward": problem.reward.name,
        "evolora": __version__,
    }
    return replace(adapter, base=base.reference, provenance={**adapter.provenance, **made})


def _test(
    problem: Problem, members: Sequence[Adapter | None], progress: Progress
) -> tuple[list[Evaluation], Ledger]:
    engine, examples = problem.engine, problem.split("test")
    names = "base, start and adapter" if len(members) > 2 else "base and adapter"
    progress.note(f"testing {names} on {len(examples)} prompts")
    outer, engine.ledger = engine.ledger, Ledger()
    began = time.perf_counter()
    try:
        found = []
        for member in members:
            found += evaluate(
                engine, member, examples, problem.reward, problem.max_new_tokens, stop=problem.task.stop
            )
        engine.ledger.seconds += time.perf_counter() - began
        return found, engine.ledger
    finally:
        engine.ledger = outer


def samples(problem: Problem, outcome: Adaptation, most: int = 50) -> list[dict[str, Any]]:
    """Test prompts with both answers, those that changed first."""
    rows: list[dict[str, Any]] = []
    columns = zip(
        problem.split("test"),
        outcome.base.completions,
        outcome.adapted.completions,
        outcome.base.correct,
        outcome.adapted.correct,
        strict=True,
    )
    for example, before, after, was, now in columns:
        rows.append(
            {
                "prompt": example.text,
                "answer": example.answer,
                "base": before,
                "adapted": after,
                "base_correct": was,
                "adapted_correct": now,
            }
        )
    return sorted(rows, key=_changed, reverse=True)[:most]


def _changed(row: Mapping[str, Any]) -> float:
    change = abs(row["adapted_correct"] - row["base_correct"])
    return 0.0 if math.isnan(change) else change
