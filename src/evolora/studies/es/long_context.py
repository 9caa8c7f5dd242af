"""Rung 6 of the ladder: long prompts, and one number at the end.

``retrieval/majority``: five people in a long text like one thing, and two each two other things; what do most
people like? The reward is 0 or 1 for the whole answer. The longer the text, the fewer prompts and steps a
budget has; the preset says up to which length it goes.

    plain        EGGROLL on the weights
    decomposed   B and the magnitudes of a DoRA

Adapted are the attention projections of the top layers. Each arm chooses among three step sizes, on the
validation prompts of a tuning seed.

Source: the ladder's sixth rung, which its source names and has not climbed; EGGROLL, arXiv 2511.16652.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from evolora.studies.judgement import compared, gained
from evolora.studies.search_study import UNDECIDED, SearchStudy
from evolora.studies.study import Arm, Cells, Claim, Finding, Preset, Settings
from evolora.studies.trial import LANGUAGE, TINY, base_of, problem_of
from evolora.tasks import load_task

if TYPE_CHECKING:
    from evolora.adapters import Adapter
    from evolora.problems import Problem

LENGTHS = (128, 512, 1024, 2048, 4096)
UNIT = 512  # the length that a preset's budget is for
SIZES: dict[str, Any] = {"targets": "attention", "layers": "top:2", "train": 200}


class EsLongContext(SearchStudy):
    """See the module's text."""

    name: ClassVar[str] = "es-long-context"
    summary: ClassVar[str] = "plain and decomposed EGGROLL from one 0/1 reward after a long text: rung 6"
    source: ClassVar[str] = "EGGROLL, arXiv 2511.16652; DoRA, arXiv 2402.09353"
    methods: ClassVar[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
        f"{length} {kind}": made
        for length in LENGTHS
        for kind, made in {
            "plain": ("eggroll", {"sigma": 0.03}),
            "decomposed": ("decomposed", {"sigma": 0.3}),
        }.items()
    }
    grid: ClassVar[tuple[Settings, ...]] = tuple({"lr": lr} for lr in (0.2, 0.5, 1.0))
    claims: ClassVar[tuple[Claim, ...]] = (
        *(
            Claim(
                f"{kind}-learns",
                f"{kind}: more held-out answers are exactly right at the shortest length",
                "the interval of the gain over seeds does not lie above zero, or p >= 0.05",
            )
            for kind in ("plain", "decomposed")
        ),
        Claim(
            "decomposed-ahead",
            "decomposed EGGROLL ends with more right answers than plain EGGROLL at the shortest length",
            UNDECIDED,
        ),
    )
    presets: ClassVar[Mapping[str, Preset]] = {
        "smoke": Preset((1, 2), (100,), TINY | SIZES | {"lengths": [128], "flops": 5e9}),
        "small": Preset(
            tuple(range(1, 7)),
            (100,),
            LANGUAGE
            | SIZES
            | {"lengths": [512], "batch": 8, "common": {"population": 16}, "flops": 1e13}
            | {"validation": 24, "test": 60},
        ),
        "full": Preset(
            tuple(range(1, 13)),
            (100,),
            LANGUAGE
            | SIZES
            | {"layers": "top:10", "train": 1000, "lengths": list(LENGTHS[1:]), "batch": 32}
            | {"common": {"population": 32}, "flops": 3e15, "validation": 100, "test": 200},
        ),
    }

    def arms(self, settings: Settings) -> Mapping[str, Arm]:
        """Those of the preset's lengths."""
        arms = super().arms(settings)
        return {arm: made for arm, made in arms.items() if _length(arm) in settings["lengths"]}

    def cell(self, options: Settings, seed: int, settings: Settings) -> dict[str, Any]:
        """One search; the budget grows with the length."""
        flops = settings["flops"] * _length(options["arm"]) / UNIT
        return super().cell(options, seed, {**settings, "flops": flops})

    def problem(self, arm: str, seed: int, settings: Settings) -> tuple[Problem, Adapter | None]:
        """Long texts of the arm's length, from the base as it is."""
        sizes = {key: settings[key] for key in ("train", "validation", "test")}
        task = load_task(f"retrieval/majority:{_length(arm)}", seed=seed, **sizes)
        return problem_of(base_of(settings["model"]), task, "exact", seed, settings), None

    def judge(self, cells: Cells) -> list[Finding]:
        """At the shortest length: each arm against the base, then decomposed against plain."""
        shortest = min(_length(arm) for arm in cells.results)
        plain, decomposed = f"{shortest} plain", f"{shortest} decomposed"
        return [
            gained(cells, "plain-learns", plain, "exact", "start_exact"),
            gained(cells, "decomposed-learns", decomposed, "exact", "start_exact"),
            compared(cells, "decomposed-ahead", decomposed, plain, "exact"),
        ]


def _length(arm: str) -> int:
    return int(arm.partition(" ")[0])
