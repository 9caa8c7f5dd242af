"""Rung 4 of the ladder: a pretrained small model, generated arithmetic, answer log-likelihood as the reward.

    plain        EGGROLL on the weights
    factors      EGGROLL on the B of a LoRA
    decomposed   B and the magnitudes of a DoRA

Sums of two numbers; the base says almost none of them in the required form. Each arm chooses among four step
sizes on the validation prompts of a tuning seed, and has a sigma that gives perturbations of about one size
in the weights.

Source: the ladder's fourth rung; EGGROLL, arXiv 2511.16652; DoRA, arXiv 2402.09353.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from evolora.studies.judgement import compared, improved
from evolora.studies.search_study import UNDECIDED, SearchStudy
from evolora.studies.study import Cells, Claim, Finding, Preset, Settings
from evolora.studies.trial import LANGUAGE, TINY, base_of, problem_of
from evolora.tasks import load_task

if TYPE_CHECKING:
    from evolora.adapters import Adapter
    from evolora.problems import Problem


class EsLogprob(SearchStudy):
    """See the module's text."""

    name: ClassVar[str] = "es-lm-logprob"
    summary: ClassVar[str] = "plain and decomposed EGGROLL from answer log-likelihood on arithmetic: rung 4"
    source: ClassVar[str] = "EGGROLL, arXiv 2511.16652; DoRA, arXiv 2402.09353"
    methods: ClassVar[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
        "plain": ("eggroll", {"sigma": 0.01}),
        "factors": ("eggroll", {"space": "factors", "sigma": 0.05}),
        "decomposed": ("decomposed", {"sigma": 0.05}),
    }
    grid: ClassVar[tuple[Settings, ...]] = tuple({"lr": lr} for lr in (0.05, 0.2, 0.5, 1.0))
    claims: ClassVar[tuple[Claim, ...]] = (
        *(
            Claim(
                f"{arm}-learns",
                f"{arm}: held-out answers become more likely in every seed",
                "a seed that ends above the base's nats per token, or p >= 0.05",
                "stable",
            )
            for arm in methods
        ),
        *(
            Claim(
                f"decomposed-ahead-of-{other}",
                f"decomposed EGGROLL ends at fewer nats per token, against {other}",
                UNDECIDED,
                "mildly in favour of decomposed",
            )
            for other in ("plain", "factors")
        ),
    )
    presets: ClassVar[Mapping[str, Preset]] = {
        "smoke": Preset((1, 2), (100,), TINY),
        "small": Preset(
            tuple(range(1, 9)),
            (100,),
            LANGUAGE
            | {"layers": "top:4", "batch": 16, "common": {"population": 16}, "flops": 2e12}
            | {"validation": 60, "test": 120},
        ),
        "full": Preset(
            tuple(range(1, 21)),
            (100, 101, 102),
            LANGUAGE
            | {"layers": None, "batch": 32, "common": {"population": 64}, "flops": 1e15}
            | {"validation": 200, "test": 200},
        ),
    }

    def problem(self, arm: str, seed: int, settings: Settings) -> tuple[Problem, Adapter | None]:
        """Sums, from the base as it is."""
        sizes = {split: settings[split] for split in ("validation", "test")}
        task = load_task("arith/add:3", seed=seed, train=400, **sizes)
        return problem_of(base_of(settings["model"]), task, "logprob", seed, settings), None

    def judge(self, cells: Cells) -> list[Finding]:
        """Each arm against the base, then decomposed against the others."""
        found = [
            improved(cells, f"{arm}-learns", arm, "nats", "start_nats", higher_is_better=False)
            for arm in self.methods
        ]
        for other in ("plain", "factors"):
            claim = f"decomposed-ahead-of-{other}"
            found.append(compared(cells, claim, "decomposed", other, "nats", higher_is_better=False))
        return found
