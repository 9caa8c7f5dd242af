"""The loop of a search: ask, evaluate, tell, until the budget is spent; journalled, saved, resumed."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evolora.budget import Budget
from evolora.engine import Ledger
from evolora.errors import ConfigError, DivergedError
from evolora.guard import Guard, Watch, finite, own_tensors
from evolora.problems import Problem
from evolora.problems.problem import no_rewards, render
from evolora.progress import Progress
from evolora.runs import Interrupt, RunFolder
from evolora.search import AnyMethod, GradientMethod, PolicyMethod
from evolora.search.state import State, from_checkpoint, to_checkpoint

if TYPE_CHECKING:
    from evolora.adapters import Adapter

SAVE_SECONDS = 30.0  # a state is saved at least this often,
SAVE_SHARE = 20  # and more often where saving takes at most a twentieth of the time
UNKNOWN_STEPS = 40  # how long a search is taken to be before its first step's cost is known
UNJUDGED_STEPS = 3  # a reward that judges nothing for so many steps ends the run


def first_state(problem: Problem, method: AnyMethod, seed: int, start: Adapter | None) -> State:
    """The state before the first step; where magnitudes are searched, a LoRA start as the equal DoRA.

    Raises:
        InputError: the method cannot search this template, cannot begin at this start, or needs more prompts.
    """
    if problem.batch_size < method.least_batch:
        raise ConfigError(
            f"batch is {problem.batch_size}",
            where=method.name,
            mend=f"with these options it needs at least {method.least_batch} prompts a step",
        )
    norms, base = None, problem.engine.base
    if method.needs_norms:
        norms = base.weight_norms(problem.template)
        start = None if start is None else base.as_dora(start)
    return method.init(problem.template, seed, start, norms)


def diverged(whose: str, step: int) -> DivergedError:
    """The error for numbers that are no longer finite."""
    return DivergedError(
        f"the search diverged: {whose} numbers are no longer finite",
        where=f"step {step}",
        mend="choose a smaller sigma or lr, or --validate-every, which takes a fall back",
    )


class Loop:
    """Steps of one search, and what is kept between them.

    Args:
        problem: what is improved.
        method: any of ``evolora.search``.
        budget: ends it.
        run: an open run folder to journal to, save in and resume from; None keeps all in memory.
        progress: told of every step.
        seed: every random choice of the method follows from it.
        start: an adapter to begin at.
        watch: what a guard is asked to do, if there is to be one.

    Attributes:
        state: where the search stands.
        result: the state to take: the best that the guard saw, or the last.
        ledger: what was spent.
        journal: one mapping a step.
        stopped: what ended it, in words.
    """

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
        self.told_no_spread, self.unjudged, self.axis = False, 0, ""
        self.guard = None if watch is None else Guard(problem, watch)
        saved = run.resume() if run is not None else None
        if saved is None:
            self.state = first_state(problem, method, seed, start)
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
            fraction = budget.nearest(budget.spent(self.state.step, self.ledger))[1]
            if self.state.progress >= 1 > fraction:  # the budget was raised: steps must not stay at zero
                self.state = replace(self.state, progress=fraction)
            self.journal = run.journal.read()
            for line in saved.passed_over:
                progress.note(f"{line}; the state before it is used")
            progress.note(f"going on after step {self.state.step}")

    def go(self) -> None:
        """Steps until the budget is spent."""
        engine = self.problem.engine
        outer, engine.ledger = engine.ledger, self.ledger
        limits = self.budget.limits()
        self.axis = self.budget.nearest(self.budget.spent(self.state.step, self.ledger))[0]
        self.progress.start(limits[self.axis], self.axis)
        saved_step, saved_at, pause = self.state.step, time.monotonic(), 0.0
        try:
            with Interrupt() as interrupt:
                if self.guard is not None and self.guard.best is None:
                    self.guard.look(self.state, self.method.mean(self.state))
                while True:
                    name, fraction = self.budget.nearest(self.budget.spent(self.state.step, self.ledger))
                    over = fraction >= 1 or self.plateau
                    if over and self.guard is not None and not self.guard.looked_at(self.state):
                        self.guard.look(self.state, self.method.mean(self.state))
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
        if (nearest := self.budget.nearest(after)[0]) != self.axis:
            self.axis = nearest
            self.progress.start(self.budget.limits()[nearest], nearest)
        self.progress.update(self.state.step, {**line, "spent": after[self.axis]})

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
        """The fraction of the budget spent once a step that costs what the last one did is done.

        Before the first step nothing is known of its cost: one of ``UNKNOWN_STEPS``, lest it be of size 0.
        """
        ahead = {key: value + self.last_cost.get(key, 0.0) for key, value in spent.items()}
        fraction = self.budget.nearest(ahead | {"steps": self.state.step + 1})[1]
        return min(1.0, fraction if self.last_cost else max(fraction, 1 / UNKNOWN_STEPS))

    def _require_some(self, nothing: bool, failed: Mapping[str, int], step: int) -> None:
        """Ends the run where the reward judges nothing at all: at the first step, or for several."""
        self.unjudged = self.unjudged + 1 if nothing else 0
        if nothing and (step == 0 or self.unjudged >= UNJUDGED_STEPS):
            if step > 0 and set(failed) == {"not_finite"}:
                raise diverged("the model's", step)
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

    @property
    def looked(self) -> dict[str, Any] | None:
        """What the guard saw, and the step of the state that it keeps."""
        if self.guard is None or self.guard.best is None:
            return None
        return {"kept": self.guard.best.step, "looks": [list(look) for look in self.guard.looks]}

    def _look(self) -> dict[str, Any]:
        if self.guard is None:
            if not finite(self.state):
                raise diverged("its", self.state.step)
            return {}
        if not self.guard.due(self.state) and finite(self.state) and not self.unjudged:
            return {}
        finding = self.guard.look(self.state, self.method.mean(self.state))
        if finding == "diverged":
            self.state = self.guard.restore(self.state)
            self.method = self.method.halved(1)
            assert self.guard.best is not None
            self.progress.note(
                f"step {self.state.step}: the search diverged; the state of step {self.guard.best.step} "
                "comes back" + (", and steps are half as long from here" if self.method.step_options else "")
            )
        value = self.guard.looks[-1][1] if self.guard.looked_at(self.state) else float("nan")
        return {"validation": value, "diverged": float(finding == "diverged")}

    def _save(self) -> None:
        assert self.run is not None
        tensors, numbers = to_checkpoint(self.state)
        extra: dict[str, Any] = {"ledger": self.ledger.snapshot(), "last_cost": self.last_cost}
        if self.guard is not None:
            kept, extra["guard"] = self.guard.save()
            tensors |= kept
        self.run.save_checkpoint(self.state.step, tensors, {**numbers, **extra})
