"""Evolution against gradients at equal forward FLOPs, from the same 0/1 reward (``adamw`` sees the answers).

The demonstration's questions, from the base as it is. Backward passes come on top, and stand in the ledger:
the comparison favours the gradient. Every arm chooses among three settings of its step size on the validation
prompts of a tuning seed.

``geometry`` runs EGGROLL and AdamW on the same prompts and compares the two deltas: the cosine, and the
reward's lowest point on the straight line between them.

Source: ES ahead of reinforcement learning, arXiv 2509.24372 and 2511.16652; other geometry at the same
accuracy, arXiv 2604.01499.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar

from evolora.budget import Budget
from evolora.diagnostics import straight_path
from evolora.stats import mean_interval
from evolora.studies.judgement import compared, spread
from evolora.studies.search_study import UNDECIDED, SearchStudy
from evolora.studies.study import Arm, Cells, Claim, Finding, Measure, Preset, Settings
from evolora.studies.trial import LANGUAGE, MEASURES, TINY, base_of, problem_of, search
from evolora.tasks import load_task

if TYPE_CHECKING:
    from evolora.adapters import Adapter
    from evolora.problems import Problem

GEOMETRY, NEAR = "geometry", 0.1  # a cosine below this is another direction


def _grid(option: str, *values: float) -> tuple[dict[str, float], ...]:
    return tuple({option: value} for value in values)


class EsVersusGradient(SearchStudy):
    """See the module's text."""

    name: ClassVar[str] = "es-vs-gradient"
    summary: ClassVar[str] = "EGGROLL against GRPO, AdamW, MeZO and random search at equal forward FLOPs"
    source: ClassVar[str] = "arXiv 2509.24372; arXiv 2511.16652; arXiv 2604.01499"
    methods: ClassVar[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
        "eggroll": ("eggroll", {"sigma": 0.03}),
        "mezo": ("mezo", {"sigma": 0.02}),
        "random_search": ("random_search", {}),
        "grpo": ("grpo", {}),
        "adamw": ("adamw", {}),
    }
    grids: ClassVar[Mapping[str, tuple[Settings, ...]]] = {
        "eggroll": _grid("lr", 0.3, 1.0, 2.0),
        "mezo": _grid("lr", 3e-4, 1e-3, 3e-3),
        "random_search": _grid("sigma", 0.02, 0.04, 0.08),
        "grpo": _grid("lr", 5e-4, 2e-3, 5e-3),
        "adamw": _grid("lr", 5e-4, 2e-3, 5e-3),
    }
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim("ahead-of-random-search", "EGGROLL ends with more right answers than random search", UNDECIDED),
        Claim("ahead-of-mezo", "EGGROLL ends with more right answers than MeZO", UNDECIDED),
        Claim(
            "ahead-of-grpo",
            "EGGROLL ends with more right answers than GRPO at equal forward FLOPs",
            UNDECIDED,
            "ES ahead of PPO and GRPO on most tasks and models (arXiv 2509.24372)",
        ),
        Claim("answers-are-worth-more", "AdamW, shown the answers, ends above EGGROLL", UNDECIDED),
        Claim(
            "another-geometry",
            "EGGROLL's and AdamW's deltas point elsewhere: a mean cosine below 0.1",
            "a mean cosine over seeds of 0.1 or more, or an interval that reaches it",
            "nearly orthogonal at the same accuracy (arXiv 2604.01499)",
        ),
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
    measures: ClassVar[Mapping[str, Measure]] = {
        **MEASURES,
        "cosine": Measure("cosine of the two deltas"),
        "barrier": Measure("how far the reward falls below the line between them", higher_is_better=False),
    }

    def arms(self, settings: Settings) -> Mapping[str, Arm]:
        """Every method, and the comparison of two deltas."""
        return {**super().arms(settings), GEOMETRY: Arm({"arm": GEOMETRY})}

    def cell(self, options: Settings, seed: int, settings: Settings) -> dict[str, Any]:
        """One search, or two and the line between them."""
        if options["arm"] != GEOMETRY:
            return super().cell(options, seed, settings)
        problem, _ = self.problem(GEOMETRY, seed, settings)
        budget, found = Budget(forward_flops=settings["flops"]), []
        for arm in ("adamw", "eggroll"):
            method, given = self.methods[arm]
            found.append(search(problem, method, given, budget, seed).adapter)
        gradient, evolved = found
        if gradient is None or evolved is None:
            return {"cosine": nan, "barrier": nan}
        path = straight_path(problem, gradient, evolved, problem.split("validation"))
        line = {"positions": list(path.positions), "rewards": list(path.rewards)}
        return {"cosine": path.cosine, "barrier": path.barrier, "line": line}

    def problem(self, arm: str, seed: int, settings: Settings) -> tuple[Problem, Adapter | None]:
        """The demonstration's questions."""
        sizes = {key: settings[key] for key in ("validation", "test")}
        task = load_task("things", seed=seed, **sizes)
        return problem_of(base_of(settings["model"]), task, "exact", seed, settings), None

    def judge(self, cells: Cells) -> list[Finding]:
        """EGGROLL against each, and the cosine."""
        return [
            compared(cells, "ahead-of-random-search", "eggroll", "random_search", "exact"),
            compared(cells, "ahead-of-mezo", "eggroll", "mezo", "exact"),
            compared(cells, "ahead-of-grpo", "eggroll", "grpo", "exact"),
            compared(cells, "answers-are-worth-more", "adamw", "eggroll", "exact"),
            _apart(cells),
        ]


def _apart(cells: Cells) -> Finding:
    cosines = [value for value in cells.values(GEOMETRY, "cosine") if value == value]
    mean, ci = (fmean(cosines), mean_interval(cosines)) if cosines else (nan, (nan, nan))
    words = f"cosine {spread(cosines)}; barrier {spread(cells.values(GEOMETRY, 'barrier'))}"
    return Finding("another-geometry", ci[1] < NEAR, mean, ci, nan, len(cosines), words)
