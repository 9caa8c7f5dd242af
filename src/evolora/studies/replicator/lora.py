"""The experiment that the report never ran: a population of LoRAs on a language model, against tuned AdamW.

A frozen 135M model, LoRA of rank 4 in the attention projections (of all layers in ``full``, of the top two in
``small``), rewarded by the log-likelihood of

    sentiment   `` positive`` or `` negative`` after a sentence of a film review
    corpus      how a passage of plain text goes on

    n8, n16        replicator with 8 and 16 candidates; kappa, lambda_M and D from a grid of eight
    adamw          equal forward FLOPs; the step size from a grid of eight
    adamw_total    equal forward and backward FLOPs

All are tuned on the same budget and validation prompts, on a tuning seed. ESS, diversity (mean pairwise
distance of the deltas) and the norm are drawn over the budget. A run is catastrophic that ends above the
frozen base's loss.

Source: arXiv 2607.02171.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from math import inf, isnan
from typing import TYPE_CHECKING, Any, ClassVar

from evolora.errors import ConfigError
from evolora.studies.judgement import compared, gained
from evolora.studies.search_study import UNDECIDED, SearchStudy
from evolora.studies.study import Cells, Claim, Finding, Preset, Settings
from evolora.studies.trial import LANGUAGE, TINY, base_of, problem_of
from evolora.tasks import load_task

if TYPE_CHECKING:
    from evolora.adapters import Adapter
    from evolora.problems import Problem

TASKS = ("sentiment", "corpus")
RANK = 4
POPULATIONS = {"n8": 8, "n16": 16}
REPLICATOR: tuple[Settings, ...] = tuple(
    {"kappa": kappa, "lambda_m": forgetting, "diffusion": size, "spread": (2 * size) ** 0.5}
    for kappa, forgetting, size in product((20.0, 100.0), (0.5, 2.0), (3e-4, 3e-3))
)
ADAMW: tuple[Settings, ...] = tuple({"lr": lr} for lr in (1e-4, 3e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2))


class ReplicatorLora(SearchStudy):
    """See the module's text."""

    name: ClassVar[str] = "replicator-lora"
    summary: ClassVar[str] = "a population of LoRAs against tuned AdamW on sentiment and on plain text"
    source: ClassVar[str] = "arXiv 2607.02171"
    data: ClassVar[Mapping[str, str]] = {
        "sentiment": 'JSON lines with "sentence" and "label"; SST-2 from the Hub if not given',
        "corpus": "a plain text file",
    }
    methods: ClassVar[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
        f"{task} {arm}": made
        for task in TASKS
        for arm, made in {
            **{arm: ("replicator", {"population": n, "rank": RANK}) for arm, n in POPULATIONS.items()},
            **{arm: ("adamw", {"rank": RANK}) for arm in ("adamw", "adamw_total")},
        }.items()
    }
    grids: ClassVar[Mapping[str, tuple[Settings, ...]]] = {
        arm: ADAMW if "adamw" in arm else REPLICATOR for arm in methods
    }
    claims: ClassVar[tuple[Claim, ...]] = tuple(
        claim
        for task in TASKS
        for claim in (
            *(
                Claim(
                    f"{task}-{arm}-learns",
                    f"the population ({arm}) ends with a lower loss on {task} than the frozen base",
                    "the interval of the gain over seeds does not lie above zero, or p >= 0.05",
                )
                for arm in POPULATIONS
            ),
            *(
                Claim(
                    f"{task}-{other}-not-beaten",
                    f"tuned AdamW ({other}) ends with a lower loss on {task} than the better population",
                    UNDECIDED,
                    "expected by the report's smaller benchmarks; never run",
                )
                for other in ("adamw", "adamw_total")
            ),
        )
    )
    presets: ClassVar[Mapping[str, Preset]] = {
        "smoke": Preset((1, 2), (100,), TINY | {"common": {}, "targets": "attention"}),
        "small": Preset(
            tuple(range(1, 9)),
            (100,),
            LANGUAGE
            | {"targets": "attention", "layers": "top:2", "batch": 8, "common": {}, "flops": 1.5e12}
            | {"validation": 30, "test": 80},
        ),
        "full": Preset(
            tuple(range(1, 21)),
            (100, 101),
            LANGUAGE
            | {"targets": "attention", "layers": None, "batch": 32, "common": {}, "flops": 3e15}
            | {"validation": 200, "test": 500},
        ),
    }

    def limit(self, arm: str) -> str:
        """Forward and backward together for ``adamw_total``."""
        return "flops" if arm.endswith("adamw_total") else super().limit(arm)

    def problem(self, arm: str, seed: int, settings: Settings) -> tuple[Problem, Adapter | None]:
        """Sentences or passages, from the base as it is."""
        name, sizes = arm.partition(" ")[0], {key: settings[key] for key in ("validation", "test")}
        path = settings["data"].get(name)
        if path is None and name == "corpus":
            raise ConfigError("there is no text", where=self.name, mend="give one: --data corpus=FILE")
        task = load_task(f"{name}:{path}" if path else name, seed=seed, **sizes)
        return problem_of(base_of(settings["model"]), task, "logprob", seed, settings), None

    def judge(self, cells: Cells) -> list[Finding]:
        """Each task: both populations against the base, AdamW against the better of them."""
        found = []
        for task in TASKS:
            for arm in POPULATIONS:
                claim = f"{task}-{arm}-learns"
                found.append(
                    gained(cells, claim, f"{task} {arm}", "nats", "start_nats", higher_is_better=False)
                )
            better = _better(cells, [f"{task} {arm}" for arm in POPULATIONS])
            for other in ("adamw", "adamw_total"):
                claim, arms = f"{task}-{other}-not-beaten", (f"{task} {other}", better)
                ahead = compared(cells, claim, *arms, "nats", higher_is_better=False)
                found.append(_with_catastrophes(cells, arms, ahead))
        return found


def _better(cells: Cells, arms: list[str]) -> str:
    """The arm of the smaller mean loss; a run that came to nothing counts as endless loss."""

    def mean(arm: str) -> float:
        values = [inf if isnan(value) else value for value in cells.values(arm, "nats")]
        return sum(values) / len(values)

    return min(arms, key=mean)


def _with_catastrophes(cells: Cells, arms: tuple[str, str], finding: Finding) -> Finding:
    """Adds the catastrophic runs to the words."""
    bad = {arm: sum(cells.values(arm, "catastrophic")) for arm in arms}
    told = ", ".join(f"{count:.0f} of {len(cells.seeds)} ({arm})" for arm, count in bad.items())
    return replace(finding, words=f"{finding.words}; catastrophic runs: {told}")
