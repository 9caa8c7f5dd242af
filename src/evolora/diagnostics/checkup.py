"""All diagnostics that apply to one finished search, as plain data.

What does not apply is named, with the reason. The cost stands in a ledger of its own. Nothing here decides
anything about the search: the test split's prompts are continued by the base, never scored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import sqrt
from typing import TYPE_CHECKING, Any

from evolora.diagnostics.decomposition import decompose
from evolora.diagnostics.deltas import deltas_of
from evolora.diagnostics.divergence import continuations, divergences
from evolora.diagnostics.gradient import alignment
from evolora.diagnostics.path import straight_path
from evolora.diagnostics.retention import retained
from evolora.diagnostics.sparsity import sparsities
from evolora.diagnostics.spectra import spectra_of
from evolora.diagnostics.walk import against_walk
from evolora.engine import Ledger
from evolora.errors import EvoloraError
from evolora.problems.answers import render
from evolora.progress import Progress
from evolora.search import Method

if TYPE_CHECKING:
    from evolora.adapters import Adapter
    from evolora.diagnostics.deltas import Delta
    from evolora.problems import Problem
    from evolora.search import AnyMethod
    from evolora.search.state import State
    from evolora.tasks import Task

PROMPTS = 32  # of each kind that the base continues, and that points of the line are judged on
LARGEST_GRADIENT = 200_000_000  # weights whose dense gradient is held (two copies, float32)
_OF_THE_JOURNAL = ("ess", "diversity", "ancestors")


@dataclass(frozen=True, eq=False)
class Finished:
    """A search that has ended.

    Attributes:
        problem: what it improved.
        method: as it ended.
        state: whose mean the adapter is.
        adapter: what came out.
        journal: one mapping a step.
        prior: the task whose retention is measured.
        start: the adapter that it began at; None is the base.
        seed: of what the base samples.
    """

    problem: Problem
    method: AnyMethod
    state: State
    adapter: Adapter
    journal: Sequence[Mapping[str, Any]]
    prior: Task
    start: Adapter | None = None
    seed: int = 0

    @cached_property
    def deltas(self) -> dict[str, Delta]:
        """What the search arrived at, before any truncation."""
        return deltas_of(self.method.mean(self.state))


class _NotApplicable(Exception):
    """Why a diagnostic does not apply."""


def diagnose(finished: Finished, progress: Progress | None = None) -> dict[str, Any]:
    """Computes what applies.

    Args:
        finished: the search.
        progress: told of each diagnostic as it begins.

    Returns:
        A mapping for JSON: ``walk``, ``spectra``, ``sparsity``, ``decomposition``, ``population``,
        ``gradient``, ``path``, ``divergence`` and ``retention``, as far as they apply; ``not_applicable``,
        name to reason; ``ledger``, what it cost.
    """
    progress = progress or Progress()
    engine = finished.problem.engine
    outer, engine.ledger = engine.ledger, Ledger()
    began = time.perf_counter()
    found: dict[str, Any] = {}
    absent: dict[str, str] = {}
    try:
        for name, examine in _SECTIONS.items():
            progress.note(f"diagnostics: {name}")
            try:
                found[name] = examine(finished)
            except _NotApplicable as reason:
                absent[name] = str(reason)
            except EvoloraError as error:  # it must not cost the run its result
                absent[name] = f"it failed: {error}"
        engine.ledger.seconds = time.perf_counter() - began
        return {**found, "not_applicable": absent, "ledger": engine.ledger.snapshot()}
    finally:
        engine.ledger = outer


def _walk(run: Finished) -> dict[str, Any]:
    if not any("walk_ratio" in line for line in run.journal):
        takes = (
            f"with these options {run.method.name} takes no independent steps of a known size on the weights"
        )
        raise _NotApplicable(takes if run.start is None else "the search began at an adapter")
    squared = run.state.numbers.get("walk", 0.0)
    if not squared > 0:
        raise _NotApplicable("no step was taken")
    return asdict(against_walk(run.deltas, sqrt(squared)))


def _spectra(run: Finished) -> dict[str, Any]:
    lost = run.adapter.provenance.get("truncation_error")
    return {
        **_named(asdict(spectra_of(run.deltas))),
        "export_rank": run.adapter.rank,
        "truncation_error": lost,
    }


def _sparsity(run: Finished) -> dict[str, Any]:
    return _named(asdict(sparsities(run.problem.engine.base, run.deltas)))


def _decomposition(run: Finished) -> dict[str, Any]:
    return asdict(decompose(run.problem.engine.base, run.deltas))


def _population(run: Finished) -> dict[str, Any]:
    found = {}
    for name in _OF_THE_JOURNAL:
        values = [line[name] for line in run.journal if isinstance(line.get(name), int | float)]
        if values:
            found[name] = {"first": values[0], "last": values[-1], "least": min(values)}
    if not found:
        raise _NotApplicable(f"{run.method.name} keeps no population from step to step")
    return found


def _gradient(run: Finished) -> dict[str, Any]:
    if not isinstance(run.method, Method):
        raise _NotApplicable(f"{run.method.name} follows gradients itself")
    weights = sum(spec.d_out * spec.d_in for spec in run.problem.template.values())
    if weights > LARGEST_GRADIENT:
        raise _NotApplicable(f"a dense gradient of {weights:,} weights is not affordable")
    if any(getattr(delta, "magnitude", None) is not None for delta in run.deltas.values()):
        raise _NotApplicable("the search moves DoRA's magnitudes, not a matrix added to the weights")
    examples = run.problem.batch(run.state.step)
    if not all(example.answer.strip() for example in examples):
        raise _NotApplicable("the task has prompts without answers, so no likelihood to differentiate")
    return asdict(alignment(run.problem, run.method, run.state, examples))


def _path(run: Finished) -> dict[str, Any]:
    ends = (run.adapter,) if run.start is None else (run.start, run.adapter)
    if any(factors.magnitude is not None for end in ends for factors in end.modules.values()):
        raise _NotApplicable("a DoRA adapter does not lie on a straight line of deltas")
    examples = run.problem.split("validation")[:PROMPTS]
    found = asdict(straight_path(run.problem, run.start, run.adapter, examples))
    return {**found, "first": "base" if run.start is None else run.start.name, "prompts": len(examples)}


def _divergence(run: Finished) -> dict[str, Any]:
    engine = run.problem.engine
    found = {}
    for key, task in (("on_task", run.problem.task), ("off_task", run.prior)):
        prompts = render(engine.base, task.test[:PROMPTS])
        pairs = continuations(engine, prompts, seed=run.seed)
        found[key] = {"task": task.name, **asdict(divergences(engine, run.adapter, pairs)[0])}
    return found


def _retention(run: Finished) -> dict[str, Any]:
    return asdict(retained(run.problem.engine, run.adapter, run.prior))


_SECTIONS: dict[str, Callable[[Finished], dict[str, Any]]] = {
    "walk": _walk,
    "spectra": _spectra,
    "sparsity": _sparsity,
    "decomposition": _decomposition,
    "population": _population,
    "gradient": _gradient,
    "path": _path,
    "divergence": _divergence,
    "retention": _retention,
}


def _named(value: Any) -> Any:
    """The same with the keys that are numbers as text."""
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else f"{key:g}": _named(item) for key, item in value.items()}
    return value
