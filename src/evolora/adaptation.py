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
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from evolora.budget import Budget
from evolora.diagnostics import Finished, check_prior, prior_task
from evolora.diagnostics import diagnose as run_diagnostics
from evolora.engine import Base, Engine, Ledger, load_base
from evolora.guard import Guard, Watch, finite, own_tensors
from evolora.problems import Evaluation, Problem, Reward, difference, evaluate, load_reward
from evolora.problems.problem import no_rewards, render
from evolora.progress import Progress
from evolora.runs import Interrupt, RunFolder
from evolora.search import AnyMethod, Eggroll, GradientMethod, PolicyMethod
from evolora.search.state import State, from_checkpoint, to_checkpoint
from evolora.tasks import Task, load_task
from evolora.version import __version__

if TYPE_CHECKING:
    from evolora.adapters import Adapter
    from evolora.engine.structure import Layers, Targets

SAVE_SECONDS = 30.0  # a state is saved at least this often,
UNJUDGED_STEPS = 3  # a reward that judges nothing for so many steps ends the run
SAVE_SHARE = 20  # and more often where saving takes at most a twentieth of the time


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
    diagnostics: dict[str, Any] | None = None
    population: Mapping[str, Adapter] = field(default_factory=dict, repr=False)


def adapt(
    base: Base | str,
    task: Task | str,
    *,
    method: AnyMethod | None = None,
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
        method: any of ``evolora.search``; EGGROLL if None.
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
    prior = prior_task(task, retain, seed) if diagnose else None
    judge = load_reward(reward or task.reward)
    try:
        template = base.modules(targets, layers)
        problem = Problem(Engine(base), task, judge, batch, seed, template=template)
        return improve(
            problem,
            method or Eggroll(),
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
    search = _Search(problem, method, budget, run, progress, seed, start, watch)
    search.go()
    adapter = _sign(method.adapter(search.result, rank=export_rank), problem)
    if run is not None:
        adapter.save(run.adapter_path, overwrite=True)
    base, adapted, testing = _test(problem, adapter, progress)
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
    )


class _Search:
    """The loop, and what it keeps between steps."""

    def __init__(
        self,
        problem: Problem,
        method: AnyMethod,
        budget: Budget,
        run: RunFolder | None,
        progress: Progress,
        seed: int,
        start: Adapter | None,
        watch: Watch | None,
    ) -> None:
        self.problem, self.method, self.budget, self.run, self.progress = (
            problem,
            method,
            budget,
            run,
            progress,
        )
        self.ledger, self.journal, self.stopped = Ledger(), [], ""
        self.last_cost: dict[str, float] = {}
        self.told_no_spread, self.unjudged = False, 0
        self.guard = None if watch is None else Guard(problem, watch)
        saved = run.resume() if run is not None else None
        if saved is None:
            norms = problem.engine.base.weight_norms(problem.template) if method.needs_norms else None
            self.state = method.init(problem.template, seed, start, norms)
        else:
            assert run is not None
            numbers = dict(saved.numbers)
            self.ledger.add(numbers.pop("ledger"))
            self.last_cost = numbers.pop("last_cost")
            guarded = numbers.pop("guard", None)
            self.state = from_checkpoint(problem.template, own_tensors(saved.tensors), numbers)
            if self.guard is not None and guarded is not None:
                self.guard.load(self.state, saved.tensors, guarded)
                self.method = method.halved(self.guard.halvings)
            self.journal = run.journal.read()
            for line in saved.passed_over:
                progress.note(f"{line}; the state before it is used")
            progress.note(f"going on after step {self.state.step}")

    def go(self) -> None:
        """Steps until the budget is spent."""
        engine = self.problem.engine
        outer, engine.ledger = engine.ledger, self.ledger
        limits = self.budget.limits()
        name = self.budget.nearest(self.budget.spent(self.state.step, self.ledger))[0]
        self.progress.start(limits[name], name)
        saved_step, saved_at, pause = self.state.step, time.monotonic(), 0.0
        try:
            with Interrupt() as interrupt:
                if self.guard is not None and self.guard.best is None:
                    self.guard.look(self.state, self.method.mean(self.state))
                while True:
                    name, fraction = self.budget.nearest(self.budget.spent(self.state.step, self.ledger))
                    over = fraction >= 1 or self.plateau
                    due = over or interrupt.requested or time.monotonic() - saved_at >= pause
                    if due and self.run is not None and self.state.step > saved_step:
                        began = time.monotonic()
                        self._save()
                        saved_step, saved_at = self.state.step, time.monotonic()
                        pause = min(SAVE_SECONDS, SAVE_SHARE * (saved_at - began))
                    if over:
                        self.stopped = "plateau" if self.plateau else f"{name} budget spent"
                        return
                    if interrupt.requested:
                        raise KeyboardInterrupt
                    self._step()
        finally:
            engine.ledger = outer
            self.progress.finish()

    def _step(self) -> None:
        before = self.budget.spent(self.state.step, self.ledger)
        began = time.perf_counter()
        metrics = self._learn(before)
        metrics |= self._look()
        self.ledger.seconds += time.perf_counter() - began
        after = self.budget.spent(self.state.step, self.ledger)
        self.last_cost = {key: after[key] - before[key] for key in after}
        line = {"step": self.state.step, **metrics, **self.ledger.snapshot()}
        self.journal.append(line)
        if self.run is not None:
            self.run.journal.append(line)
        name = self.budget.nearest(after)[0]
        self.progress.update(self.state.step, {**line, "spent": after[name]})

    def _learn(self, spent: dict[str, float]) -> dict[str, Any]:
        step = self.state.step
        if isinstance(self.method, GradientMethod):
            examples = self.problem.batch(step)
            pairs = list(
                zip(render(self.problem.engine.base, examples), (e.answer for e in examples), strict=True)
            )
            self.state, metrics = self.method.step(
                self.state, self.problem.engine, pairs, self._ahead(spent), stop=self.problem.task.stop
            )
            self.ledger.evaluations += len(pairs)
            return metrics
        before = Counter(self.problem.reward.failures)
        if isinstance(self.method, PolicyMethod):
            self.state, metrics = self.method.step(self.state, self.problem, self._ahead(spent))
            failed = Counter(self.problem.reward.failures) - before
            self._require_some(math.isnan(metrics["reward_mean"]), failed, step)
        else:
            population = self.method.ask(self.state)
            rewards = self.problem.evaluate(population, step)
            failed = Counter(self.problem.reward.failures) - before
            self._require_some(bool(rewards.values.isnan().all()), failed, step)
            now = self.budget.spent(step + 1, self.ledger)
            fraction = min(1.0, self.budget.nearest(now)[1])
            self.state, metrics = self.method.tell(self.state, rewards.values, fraction)
        if metrics.get("no_spread") and not self.unjudged and not self.told_no_spread:
            self.told_no_spread = True
            self.progress.note(
                f"step {step + 1}: all members were rewarded alike, so nothing was learned; if that goes on, "
                f"try {self.method.spread_advice}, more prompts a step, or a text that ends the answers "
                "(stop)"
            )
        failures: dict[str, Any] = {f"failed_{kind}": count for kind, count in failed.items()}
        return {**metrics, **failures}

    def _ahead(self, spent: dict[str, float]) -> float:
        """The fraction of the budget spent once a step that costs what the last one did is done."""
        ahead = {key: value + self.last_cost.get(key, 0.0) for key, value in spent.items()}
        return min(1.0, self.budget.nearest(ahead | {"steps": self.state.step + 1})[1])

    def _require_some(self, nothing: bool, failed: Mapping[str, int], step: int) -> None:
        """Ends the run where the reward judges nothing at all: at the first step, or for several."""
        self.unjudged = self.unjudged + 1 if nothing else 0
        if nothing and (step == 0 or self.unjudged >= UNJUDGED_STEPS):
            raise no_rewards(failed, self.problem.reward.error, self.problem.reward.name)

    @property
    def plateau(self) -> bool:
        """Whether the guard has seen nothing better for as long as it is patient."""
        return self.guard is not None and self.guard.patient_no_more

    @property
    def result(self) -> State:
        """The best state that the guard saw, or the last one."""
        best = None if self.guard is None else self.guard.best
        return self.state if best is None else best

    def _look(self) -> dict[str, Any]:
        if self.guard is None:
            return {}
        if not self.guard.due(self.state) and finite(self.state):
            return {}
        finding = self.guard.look(self.state, self.method.mean(self.state))
        if finding == "diverged":
            self.state = self.guard.restore(self.state)
            self.method = self.method.halved(1)
            assert self.guard.best is not None
            self.progress.note(
                f"step {self.state.step}: the search diverged; the state of step {self.guard.best.step} "
                "comes back, and steps are half as long from here"
            )
        value = self.guard.looks[-1][1] if self.guard.looks else float("nan")
        return {"validation": value, "diverged": float(finding == "diverged")}

    def _save(self) -> None:
        assert self.run is not None
        tensors, numbers = to_checkpoint(self.state)
        extra: dict[str, Any] = {"ledger": self.ledger.snapshot(), "last_cost": self.last_cost}
        if self.guard is not None:
            kept, extra["guard"] = self.guard.save()
            tensors |= kept
        self.run.save_checkpoint(self.state.step, tensors, {**numbers, **extra})


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


def _test(problem: Problem, adapter: Adapter, progress: Progress) -> tuple[Evaluation, Evaluation, Ledger]:
    engine, examples = problem.engine, problem.split("test")
    progress.note(f"testing base and adapter on {len(examples)} prompts")
    outer, engine.ledger = engine.ledger, Ledger()
    began = time.perf_counter()
    try:
        (base,) = evaluate(
            engine, None, examples, problem.reward, problem.max_new_tokens, stop=problem.task.stop
        )
        (adapted,) = evaluate(
            engine, adapter, examples, problem.reward, problem.max_new_tokens, stop=problem.task.stop
        )
        engine.ledger.seconds += time.perf_counter() - began
        return base, adapted, engine.ledger
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
