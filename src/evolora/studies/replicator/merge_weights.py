"""Replicator-mutation where it should be at home: a few merge weights of specialists.

Three LoRAs are trained by AdamW, each on one operation on letters and words (``merges``). A point of R^3 is a
merge: the sum of the deltas, weighted. It is judged by the share of right answers to the same prompts of all
three tasks, held out from training; every searcher judges equally many points. Reported is the share of right
answers to fresh test prompts, where soup (weights 1/3) and the best specialist stand beside.

    replicator   a population of weights under selection and mutation, from 1/3 each
    dirichlet    the best of random draws: Dirichlet on the simplex, times a total mass
    cma          CMA-ES from 1/3 each

Each chooses among four settings by other held-out prompts of tuning seeds. Total mass is free for all three
(at mass 1 a merge dilutes every parent).

Source: arXiv 2607.02171; merge weights by evolution: arXiv 2403.13187.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from evolora.adapters import Adapter, Factors, ModuleSpec
from evolora.search import CMA, Replicator
from evolora.studies.judgement import compared, gained
from evolora.studies.replicator.merges import Bench
from evolora.studies.search_study import UNDECIDED
from evolora.studies.study import Arm, Cells, Claim, Finding, Measure, Preset, Settings, Study
from evolora.studies.trial import LANGUAGE, TINY

if TYPE_CHECKING:
    from torch import Tensor

MEMBERS = 8  # points judged at once; CMA-ES takes the same
NAME = "weights"


class ReplicatorMergeWeights(Study):
    """See the module's text."""

    name: ClassVar[str] = "replicator-merge-weights"
    summary: ClassVar[str] = "merge weights of three specialists: replicator, Dirichlet draws, CMA-ES"
    source: ClassVar[str] = "arXiv 2607.02171; arXiv 2403.13187"
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim(
            "ahead-of-dirichlet", "the replicator's merge is right more often than the best draw", UNDECIDED
        ),
        Claim("ahead-of-cma", "the replicator's merge is right more often than CMA-ES's", UNDECIDED),
        Claim("ahead-of-soup", "the replicator's merge is right more often than the uniform soup", UNDECIDED),
        Claim(
            "ahead-of-the-best-parent",
            "the replicator's merge is right more often, over all tasks, than the best specialist",
            UNDECIDED,
        ),
    )
    presets: ClassVar[Mapping[str, Preset]] = {
        "smoke": Preset((1, 2), (100,), TINY | {"steps": 2, "evaluations": 16, "common": {}}),
        "small": Preset(
            tuple(range(1, 9)),
            (100, 101),
            LANGUAGE
            | {"layers": "top:8", "batch": 16, "steps": 40, "evaluations": 48}
            | {"validation": 32, "test": 60},
        ),
        "full": Preset(
            tuple(range(1, 21)),
            tuple(range(100, 104)),
            LANGUAGE
            | {"layers": "top:15", "batch": 16, "steps": 80, "evaluations": 400}
            | {"validation": 100, "test": 200},
        ),
    }
    measures: ClassVar[Mapping[str, Measure]] = {
        "exact": Measure("share of right answers over the three tasks", higher_is_better=True),
        "worst": Measure("share of right answers on the worst task", higher_is_better=True),
        "mass": Measure("sum of the weights"),
        "soup": Measure("share of right answers of the uniform soup", higher_is_better=True),
        "best_parent": Measure("share of right answers of the best specialist", higher_is_better=True),
    }

    def arms(self, settings: Settings) -> Mapping[str, Arm]:
        """Three searchers with four settings each."""
        sizes = tuple(
            {"kappa": kappa, "diffusion": diffusion} for kappa in (10.0, 50.0) for diffusion in (0.01, 0.05)
        )
        return {
            "replicator": Arm({"arm": "replicator"}, sizes),
            "dirichlet": Arm({"arm": "dirichlet"}, tuple({"mass": mass} for mass in (1.0, 1.5, 2.0, 3.0))),
            "cma": Arm({"arm": "cma"}, tuple({"sigma": sigma} for sigma in (0.1, 0.2, 0.4, 0.8))),
        }

    def cell(self, options: Settings, seed: int, settings: Settings) -> dict[str, Any]:
        """One search of weights."""
        bench = Bench(seed, settings)
        tuned = {name: value for name, value in options.items() if name != "arm"}
        point = SEARCHERS[options["arm"]](bench, seed, settings["evaluations"], **tuned)
        found = {
            "validation": bench.judged(bench.at(point[None]), "choice").mean().item(),
            "weights": point.tolist(),
        }
        if settings["reported"]:
            found |= bench.report(point)
        return found | {"ledger": bench.engine.ledger.snapshot()}

    def judge(self, cells: Cells) -> list[Finding]:
        """The replicator against the others, the soup and the best parent."""
        found = [
            compared(cells, f"ahead-of-{other}", "replicator", other, "exact")
            for other in ("dirichlet", "cma")
        ]
        soup, parent = ("soup", "uniform soup"), ("best_parent", "best specialist")
        for claim, (key, name) in {"ahead-of-soup": soup, "ahead-of-the-best-parent": parent}.items():
            found.append(gained(cells, claim, "replicator", "exact", key, before_is=name))
        return found


def _replicator(bench: Bench, seed: int, evaluations: int, kappa: float, diffusion: float) -> Tensor:
    import torch

    spread = (2 * diffusion) ** 0.5
    method = Replicator(population=MEMBERS, rank=1, kappa=kappa, diffusion=diffusion, spread=spread)
    start = Adapter({NAME: Factors(torch.ones(1, 1), bench.map.start.float()[:, None])})
    state = method.init({NAME: ModuleSpec(bench.map.dimension, 1)}, seed, start)
    steps = evaluations // MEMBERS
    for step in range(steps):
        points = method.ask(state).block(range(MEMBERS))[NAME]
        assert points.a is not None
        rewards = bench.judged(bench.at((points.b @ points.a)[..., 0]), "search")
        state, _ = method.tell(state, rewards, (step + 1) / steps)
    best = method.mean(state).block([0])[NAME]
    assert best.a is not None
    return (best.b @ best.a)[0, :, 0].double()


def _dirichlet(bench: Bench, seed: int, evaluations: int, mass: float) -> Tensor:
    import numpy as np
    import torch

    rng = np.random.default_rng([seed, 5])
    points = torch.from_numpy(mass * rng.dirichlet(np.ones(bench.map.dimension), evaluations))
    rewards = torch.cat([bench.judged(bench.at(some), "search") for some in points.split(MEMBERS)]).mean(1)
    return points[int(rewards.argmax())]


def _cma(bench: Bench, seed: int, evaluations: int, sigma: float) -> Tensor:
    method = CMA(population=MEMBERS)
    state = method.begin(bench.map, sigma, seed)
    steps = evaluations // MEMBERS
    for step in range(steps):
        rewards = bench.judged(method.ask(state), "search")
        state, _ = method.tell(state, rewards, (step + 1) / steps)
    return state.tensor("mean")


SEARCHERS: dict[str, Callable[..., Tensor]] = {
    "replicator": _replicator,
    "dirichlet": _dirichlet,
    "cma": _cma,
}
