"""What does learning cost elsewhere? Forgetting of evolution strategies and of GRPO, at equal forward FLOPs.

The demonstration's questions are learned from a 0/1 reward; asked before and after is a prior task, other
questions that the base answers half right. Beside that: the divergence from the base on its own continuations
of prompts of both tasks, and the norm of the delta.

    eggroll    on the weights
    anchored   the same with a pull back to the base (``weight_decay``)
    grpo       gradients from groups of sampled completions

Each arm chooses among three settings on the validation prompts of the learned task alone.

Source: ES forgets more than GRPO, with larger updates, arXiv 2601.20861; forgetting follows the divergence on
the new task, arXiv 2509.04259.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import nan
from typing import TYPE_CHECKING, Any, ClassVar

from evolora.adapters import geometry
from evolora.diagnostics import continuations, divergences, prior_task
from evolora.engine import Base, Engine
from evolora.problems.answers import render
from evolora.studies.judgement import compared
from evolora.studies.search_study import UNDECIDED, SearchStudy
from evolora.studies.study import Cells, Claim, Finding, Measure, Preset, Settings
from evolora.studies.trial import LANGUAGE, MEASURES, TINY, Trial, base_of, measured, of_base, problem_of
from evolora.tasks import load_task

if TYPE_CHECKING:
    from evolora.adapters import Adapter
    from evolora.problems import Problem
    from evolora.tasks import Task

PROMPTS = 32  # of each kind that the base continues
OWN: dict[str, Measure] = {
    "prior_exact": Measure("share of the prior task's prompts answered right", higher_is_better=True),
    "prior_loss": Measure("nats per token lost on the prior task's answers", higher_is_better=False),
    "divergence_on": Measure("divergence from the base, new task, nats per token"),
    "divergence_off": Measure("divergence from the base, prior task, nats per token"),
    "norm": Measure("Frobenius norm of the delta"),
}


class EsForgetting(SearchStudy):
    """See the module's text."""

    name: ClassVar[str] = "es-forgetting"
    summary: ClassVar[str] = "what EGGROLL and GRPO forget, how far they move, and whether an anchor helps"
    source: ClassVar[str] = "arXiv 2601.20861; arXiv 2509.04259"
    methods: ClassVar[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
        "eggroll": ("eggroll", {"sigma": 0.03}),
        "anchored": ("eggroll", {"sigma": 0.03, "weight_decay": 0.05}),
        "grpo": ("grpo", {}),
    }
    grid: ClassVar[tuple[Settings, ...]] = tuple({"lr": lr} for lr in (0.3, 1.0, 2.0))
    grids: ClassVar[Mapping[str, tuple[Settings, ...]]] = {
        "grpo": tuple({"lr": lr} for lr in (5e-4, 2e-3, 5e-3))
    }
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            "es-forgets-more",
            "after EGGROLL the prior task's answers have become less likely than after GRPO",
            UNDECIDED,
            "ES forgets more than GRPO (arXiv 2601.20861)",
        ),
        Claim(
            "es-moves-further",
            "EGGROLL's delta is longer than GRPO's",
            UNDECIDED,
            "updates larger by orders of magnitude (arXiv 2601.20861)",
        ),
        Claim("an-anchor-helps", "with a pull to the base the prior task loses less likelihood", UNDECIDED),
    )
    presets: ClassVar[Mapping[str, Preset]] = {
        "smoke": Preset((1, 2), (100,), TINY | {"common": {}}),
        "small": Preset(
            tuple(range(1, 9)),
            (100,),
            LANGUAGE
            | {"layers": "top:4", "batch": 32, "common": {}, "flops": 3e12}
            | {"validation": 60, "test": 150},
        ),
        "full": Preset(
            tuple(range(1, 21)),
            (100, 101, 102),
            LANGUAGE
            | {"layers": "top:10", "batch": 64, "common": {}, "flops": 1e15}
            | {"validation": 100, "test": 150},
        ),
    }
    measures: ClassVar[Mapping[str, Measure]] = MEASURES | OWN

    def problem(self, arm: str, seed: int, settings: Settings) -> tuple[Problem, Adapter | None]:
        """The demonstration's questions."""
        sizes = {key: settings[key] for key in ("validation", "test")}
        task = load_task("things", seed=seed, **sizes)
        return problem_of(base_of(settings["model"]), task, "exact", seed, settings), None

    def further(self, trial: Trial, seed: int) -> dict[str, Any]:
        """The prior task, and how far the model has moved."""
        if trial.adapter is None:
            return dict.fromkeys(OWN, nan)
        base, new = trial.problem.engine.base, trial.problem.task
        prior = prior_task(new)
        after, before = measured(base, prior, trial.adapter), of_base(base, prior)
        on, off = (_divergence(base, task, trial.adapter) for task in (new, prior))
        return {
            "prior_exact": after["exact"],
            "prior_loss": after["nats"] - before["nats"],
            "divergence_on": on,
            "divergence_off": off,
            "norm": geometry.norm(trial.adapter),
        }

    def judge(self, cells: Cells) -> list[Finding]:
        """Paired over seeds."""
        return [
            compared(cells, "es-forgets-more", "eggroll", "grpo", "prior_loss"),
            compared(cells, "es-moves-further", "eggroll", "grpo", "norm"),
            compared(cells, "an-anchor-helps", "anchored", "eggroll", "prior_loss", higher_is_better=False),
        ]


def _divergence(base: Base, task: Task, adapter: Adapter) -> float:
    """``KL(base || adapted)`` on what the base says after a task's test prompts, nats per token."""
    (found,) = divergences(Engine(base), adapter, _said(base, task))
    return found.from_base


@lru_cache(maxsize=4)
def _said(base: Base, task: Task) -> list[tuple[list[int], list[int]]]:
    return continuations(Engine(base), render(base, task.test[:PROMPTS]))
