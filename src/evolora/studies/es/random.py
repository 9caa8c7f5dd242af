"""Rung 3 of the ladder: a small random language model. Are the layers patched, is all finite, does NLL fall?

A frozen random Llama over characters (``random_model``), another for each seed, and letters to be put in
upper case; the reward is the log-likelihood of the answer. Nothing is known beforehand, so what is learned is
the form of the answer, and which characters it has. Each arm chooses among four step sizes on the validation
prompts of tuning seeds.

Source: the ladder's third rung; EGGROLL, arXiv 2511.16652; frozen random backbones, arXiv 2604.08749.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from evolora.studies.judgement import compared, improved
from evolora.studies.random_model import random_base
from evolora.studies.search_study import UNDECIDED, SearchStudy
from evolora.studies.study import Cells, Claim, Finding, Preset, Settings
from evolora.studies.trial import problem_of
from evolora.tasks import load_task

if TYPE_CHECKING:
    from evolora.adapters import Adapter
    from evolora.problems import Problem

SIZES: dict[str, Any] = {"targets": "all-linear", "layers": None, "validation": 60, "test": 120}


class EsRandom(SearchStudy):
    """See the module's text."""

    name: ClassVar[str] = "es-lm-random"
    summary: ClassVar[str] = "plain and decomposed EGGROLL on a small random language model: rung 3"
    source: ClassVar[str] = "EGGROLL, arXiv 2511.16652; arXiv 2604.08749"
    methods: ClassVar[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
        "plain": ("eggroll", {"sigma": 0.02}),
        "factors": ("eggroll", {"space": "factors", "sigma": 0.1}),
        "decomposed": ("decomposed", {"sigma": 0.1}),
    }
    grid: ClassVar[tuple[Settings, ...]] = tuple({"lr": lr} for lr in (0.1, 0.3, 1.0, 2.0))
    claims: ClassVar[tuple[Claim, ...]] = (
        *(
            Claim(
                f"{arm}-learns",
                f"{arm}: the held-out negative log-likelihood falls in every seed, all numbers finite",
                "a seed that ends above its start, or a number that is not finite, or p >= 0.05",
                "patched, finite, NLL falls",
            )
            for arm in methods
        ),
        Claim(
            "decomposed-ahead-of-factors",
            "decomposed EGGROLL ends at fewer nats per token than EGGROLL on factors",
            UNDECIDED,
        ),
    )
    presets: ClassVar[Mapping[str, Preset]] = {
        "smoke": Preset((1, 2), (100,), SIZES | {"batch": 4, "common": {"population": 8}, "flops": 5e8}),
        "small": Preset(
            tuple(range(1, 13)),
            (100, 101),
            SIZES | {"batch": 16, "common": {"population": 32}, "flops": 1e11},
        ),
        "full": Preset(
            tuple(range(1, 41)),
            (100, 101, 102),
            SIZES | {"batch": 32, "common": {"population": 64}, "flops": 1e13},
        ),
    }

    def problem(self, arm: str, seed: int, settings: Settings) -> tuple[Problem, Adapter | None]:
        """Four letters, and a model of the seed's own."""
        sizes = {split: settings[split] for split in ("validation", "test")}
        task = load_task("strings/upper:4", seed=seed, train=400, **sizes)
        return problem_of(random_base(seed), task, "logprob", seed, settings), None

    def judge(self, cells: Cells) -> list[Finding]:
        """Each arm against the base; a run that diverged is no pair, so its claim falls."""
        found = [
            improved(cells, f"{arm}-learns", arm, "nats", "start_nats", higher_is_better=False)
            for arm in self.methods
        ]
        claim, ours, theirs = "decomposed-ahead-of-factors", "decomposed", "factors"
        return [*found, compared(cells, claim, ours, theirs, "nats", higher_is_better=False)]
