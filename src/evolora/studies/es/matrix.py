"""The first two rungs of the ladder, on one small matrix: does the search learn, and is it reliable?

A matrix W0 is to become W*, at rank k = 1, 2, 4 or 8 from it (``matrices``: *additive* and *dora* targets). A
member with weights W is rewarded by ``-||(W - W*) x||^2`` on each of 32 fresh normal inputs x, the same
for all members of a step: 32 members in antithetic pairs, equally many steps for every arm. Measured is the
relative error ``||W - W*|| / ||W0 - W*||`` of the mean at the end: 1 at the base, 0 at the target. A run
counts as reliable where it ends below 0.5 (three quarters of the squared error gone).

    plain            EGGROLL on the weights
    plain_factors    EGGROLL on A and B of a LoRA of rank k
    decomposed       A and B of rank k, and the magnitudes
    direction_only, magnitude_only    the one or the other

All have noise of rank 1 and the defaults of their method but for what stands in ``ARMS``: sigmas that are
small against the weights, A and B searched (a frozen random A cannot reach a given row space),
``sigma_magnitude`` about ``sigma / sqrt(3)``, which gives B and m the same curvature while A is as at the
start, and one lr for both parts. Each arm has one lr for each kind of target, from one grid. ``floor`` is the
least error that an arm can reach, in closed form. The arms on factors are told the right rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any, ClassVar

from evolora.search import Method, make_method
from evolora.stats import mean_interval
from evolora.studies.es import matrices
from evolora.studies.es.matrices import NAME, TEMPLATE
from evolora.studies.judgement import compared
from evolora.studies.study import Arm, Cells, Claim, Finding, Measure, Preset, Settings, Study

POPULATION, INPUTS, RELIABLE = 32, 32, 0.5
DECOMPOSED = {"sigma": 0.05, "sigma_magnitude": 0.03, "factors": "ab"}
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("eggroll", {"sigma": 0.02}),
    "plain_factors": ("eggroll", {"sigma": 0.05, "space": "factors", "factors": "ab"}),
    "decomposed": ("decomposed", DECOMPOSED),
    "direction_only": ("decomposed", DECOMPOSED | {"ablation": "direction_only"}),
    "magnitude_only": ("decomposed", DECOMPOSED | {"ablation": "magnitude_only"}),
}
LRS = (0.25, 0.5, 1.0, 2.0)


class EsMatrix(Study):
    """See the module's text."""

    name: ClassVar[str] = "es-matrix"
    summary: ClassVar[str] = "plain and decomposed EGGROLL recover a matrix: rungs 1 and 2 of the ladder"
    source: ClassVar[str] = "EGGROLL, arXiv 2511.16652; DoRA, arXiv 2402.09353"
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            "plain-learns",
            "plain EGGROLL learns an additive target of every rank",
            "a seed and rank that ends above the base's error, or a rank whose mean is not below 0.5",
            "plain EGGROLL learns it",
        ),
        *(
            Claim(
                f"decomposed-more-reliable-than-{other.replace('_', '-')}",
                f"decomposed EGGROLL is the more reliable on additive targets, against {other}",
                "its error over ranks is not the smaller (paired), or not more of its runs end below 0.5",
                "full decomposed EGGROLL is more reliable than plain",
            )
            for other in ("plain", "plain_factors")
        ),
        *(
            Claim(
                f"{ablation.replace('_', '-')}-fails",
                f"{ablation} fails on additive targets",
                "half or more of its runs end below 0.5",
                "direction-only and magnitude-only fail",
            )
            for ablation in ("direction_only", "magnitude_only")
        ),
        Claim(
            "decomposition-pays-where-lengths-change",
            "decomposed EGGROLL has the smaller error on dora targets, against plain_factors",
            "the interval of the paired difference over seeds does not lie above zero, or p >= 0.05",
        ),
    )
    presets: ClassVar[Mapping[str, Preset]] = {
        "smoke": Preset((0, 1), (1000,), {"steps": 6, "ranks": [1, 4]}),
        "small": Preset(tuple(range(12)), (1000, 1001, 1002), {"steps": 300, "ranks": [1, 2, 4, 8]}),
        "full": Preset(tuple(range(40)), (1000, 1001, 1002), {"steps": 1000, "ranks": [1, 2, 4, 8, 16]}),
    }
    measures: ClassVar[Mapping[str, Measure]] = {
        "error": Measure("relative error at the end, mean over ranks", higher_is_better=False),
        "reliable": Measure("share of ranks that end below 0.5", higher_is_better=True),
        "floor": Measure("the least error that the arm can reach", higher_is_better=False),
    }

    def arms(self, settings: Settings) -> Mapping[str, Arm]:
        """Every method on both kinds of target."""
        grid = tuple({"lr": lr} for lr in LRS)
        return {
            f"{kind} {name}": Arm({"kind": kind, "arm": name}, grid)
            for kind in ("additive", "dora")
            for name in ARMS
        }

    def cell(self, options: Settings, seed: int, settings: Settings) -> dict[str, Any]:
        """One search for each rank."""
        kind, arm, ranks = options["kind"], options["arm"], settings["ranks"]
        errors = [search(kind, arm, rank, seed, options["lr"], settings["steps"]) for rank in ranks]
        return {
            "validation": -fmean(errors),
            "error": fmean(errors),
            "errors": errors,
            "reliable": fmean(error < RELIABLE for error in errors),
            "floor": fmean(matrices.floor(kind, arm, rank, seed) for rank in ranks),
        }

    def judge(self, cells: Cells) -> list[Finding]:
        """The claims, in their order."""
        findings = [_learns(cells)]
        for other in ("plain", "plain_factors"):
            claim = f"decomposed-more-reliable-than-{other.replace('_', '-')}"
            findings.append(_more_reliable(cells, claim, "additive decomposed", f"additive {other}"))
        findings += [_fails(cells, ablation) for ablation in ("direction_only", "magnitude_only")]
        claim, arms = "decomposition-pays-where-lengths-change", ("dora decomposed", "dora plain_factors")
        return [*findings, compared(cells, claim, *arms, "error", higher_is_better=False)]


def _learns(cells: Cells) -> Finding:
    found = [cells.results["additive plain"][seed]["errors"] for seed in cells.seeds]
    means = [fmean(column) for column in zip(*found, strict=True)]
    worst, runs = max(map(max, found)), [error for row in found for error in row]
    holds = worst < 1 and max(means) < RELIABLE
    words = (
        f"relative error {fmean(runs):.3f}, {max(means):.3f} at the worst rank, {worst:.3f} in the worst run"
    )
    ci = mean_interval(cells.values("additive plain", "error"))
    return Finding("plain-learns", holds, fmean(runs), ci, float("nan"), len(runs), words)


def _more_reliable(cells: Cells, claim: str, ours: str, theirs: str) -> Finding:
    found = compared(cells, claim, ours, theirs, "error", higher_is_better=False)
    share, other = (fmean(cells.values(arm, "reliable")) for arm in (ours, theirs))
    words = f"{found.words}; below {RELIABLE}: {share:.0%} of runs against {other:.0%}"
    return replace(found, holds=found.holds and share > other, words=words)


def _fails(cells: Cells, ablation: str) -> Finding:
    shares = cells.values(f"additive {ablation}", "reliable")
    share = fmean(shares)
    words = f"{share:.0%} of its runs end below {RELIABLE}"
    claim = f"{ablation.replace('_', '-')}-fails"
    return Finding(claim, share < 0.5, share, mean_interval(shares), float("nan"), len(shares), words)


def search(kind: str, arm: str, rank: int, seed: int, lr: float, steps: int) -> float:
    """The relative error that a search ends with."""
    base, target = matrices.pair(kind, rank, seed)
    method = _method(arm, rank, lr)
    state = method.init(TEMPLATE, seed, norms={NAME: matrices.rows(base)[:, 0]})
    for step in range(steps):
        inputs = matrices.draw(seed, "inputs", matrices.D_IN, INPUTS, step=step)
        rewards = -((matrices.weights(method.ask(state), base) - target) @ inputs).square().sum(1)
        state, _ = method.tell(state, rewards, (step + 1) / steps)
    return ((matrices.weights(method.mean(state), base)[0] - target).norm() / (base - target).norm()).item()


def _method(arm: str, rank: int, lr: float) -> Method:
    name, options = ARMS[arm]
    if name == "decomposed":
        options = options | {"direction_rank": rank, "lr_magnitude": lr}
    elif arm == "plain_factors":
        options = options | {"export_rank": rank}
    method = make_method(name, lr=lr, population=POPULATION, **options)
    assert isinstance(method, Method)
    return method
