"""The convex proxy of replicator search: 8 dimensions, 400 evaluations, against a noisy gradient.

    OMP_NUM_THREADS=1 python benchmarks/replicator_proxy.py

writes results/replicator_proxy.json in about two minutes on one core.

A point z in R^8 is judged on examples (x, y), x ~ N(0, H), y = x . z* + 0.5 noise, by the loss
``(x . z - y)^2 / 2``. H has eigenvalues from 0.1 to 1, evenly in the logarithm, in random directions; z* has
independent unit normal entries; the start is 0. Each seed has its own directions, z* and examples. Reported
is the validation loss without the noise's part, ``(z - z*)^T H (z - z*) / 2``: about 1.5 at the start, 0 at
best.

One evaluation is one point on a minibatch of 8 examples; everything has 400. A population of 16 has 25 steps,
Adam (linear decay) 400 gradients, each of one minibatch, or 133, where a gradient counts as three evaluations
(a forward and a backward pass of twice its cost). ``plain`` is the rule as published, on minibatches that all
candidates share; each variant switches one thing; ``own_minibatches`` gives each candidate its own;
``together`` switches on those three that are sensible together whatever this record says. ``openai_es`` is
an evolution strategy of 16 members with z-scored rewards. On this problem mutation in delta space is
mutation in factor space, so that variant is not here.

Every arm has the best setting of its own grid, by the mean loss over six tuning seeds that no result uses:
once for the candidate of largest weight, once for the weighted mean. The grids have 84 settings for a
population (75 with standardised rewards; the largest ``lambda_m`` is no memory), 40 for the evolution
strategy, 16 for Adam.

What would falsify what is known of this method, stated before the record was made:

1. *the mechanism holds*: a seed of which the plain population ends above half the loss of the start.
2. *a tuned gradient is not beaten*: Adam, at three evaluations a gradient, is not better than the plain
   population (the better of its two exports; paired sign-flip test on the 12 seeds, p < 0.05).

The comparisons of variants decide nothing; their p values (0.0005 is the least that 12 pairs can give) are
not corrected for their number, 16.
"""

import argparse
import json
from itertools import product
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evolora.adapters import Adapter, Factors, ModuleSpec
from evolora.adapters.noise import normal
from evolora.runs.atomic import write_atomically
from evolora.runs.provenance import collect
from evolora.search import Method, make_method
from evolora.stats import paired_difference

RESULTS = Path(__file__).parents[1] / "results"
DIMENSIONS, EVALUATIONS, EXAMPLES, NOISE, POPULATION = 8, 400, 8, 0.5, 16
SPECTRUM = (0.1, 1.0)
STEPS = EVALUATIONS // POPULATION
SEEDS, TUNING = tuple(range(12)), tuple(range(1000, 1006))
EXPORTS = ("best", "mean")
GRID = {
    "kappa": (0.5, 2.0, 8.0, 32.0, 128.0, 512.0, 2048.0),
    "diffusion": (0.002, 0.008, 0.032, 0.128),
    "lambda_m": (0.2, 1.0, 5.0),
}
STANDARD = GRID | {"kappa": (0.5, 1.0, 2.0, 4.0, 8.0), "diffusion": (*GRID["diffusion"], 0.512)}
ES = {"sigma": (0.02, 0.05, 0.1, 0.2, 0.4), "lr": (0.2, 0.4, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0)}
ADAM = {"lr": (0.01, 0.02, 0.04, 0.08, 0.15, 0.3, 0.6, 1.2), "beta2": (0.9, 0.99)}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "own_minibatches": {},
    "standardise": {"standardise": True},
    "anneal": {"anneal": True},
    "covariance": {"mutation": "covariance"},
    "antithetic": {"antithetic": True},
    "recombine": {"recombine": "step"},
    "resample_first": {"resample_first": True},
    "together": {"standardise": True, "anneal": True, "recombine": "step"},
}
GRADIENTS = {"adam": 1, "adam_three": 3}  # evaluations that a gradient counts as
ARMS = (*VARIANTS, "openai_es", *GRADIENTS)
NAME, TEMPLATE = "z", {"z": ModuleSpec(DIMENSIONS, 1)}
START = Adapter({NAME: Factors(torch.ones(1, 1), torch.zeros(DIMENSIONS, 1))})  # A = 1: the delta is B


def draw(seed: int, what: str, *shape: int, step: int = 0) -> torch.Tensor:
    noise = normal(np.empty(shape, np.float32), seed=seed, step=step, purpose=f"proxy/{what}")
    return torch.from_numpy(noise).double()


class Proxy:
    """One seed's problem."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        directions = torch.linalg.qr(draw(seed, "directions", DIMENSIONS, DIMENSIONS)).Q
        values = torch.logspace(*np.log10(SPECTRUM).tolist(), DIMENSIONS, dtype=torch.float64)
        self.root = directions * values.sqrt()  # root @ root.T is H
        self.best = draw(seed, "best", DIMENSIONS)

    def examples(self, step: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """``x [count, 8]`` and ``y [count]`` of a step."""
        x = draw(self.seed, "x", count, DIMENSIONS, step=step) @ self.root.T
        return x, x @ self.best + NOISE * draw(self.seed, "y", count, step=step)

    def rewards(self, z: torch.Tensor, step: int, own: bool) -> torch.Tensor:
        """``[N, examples]`` of N points; the same examples for all, or each point's own."""
        x, y = self.examples(step, EXAMPLES * (len(z) if own else 1))
        x, y = x.view(-1, EXAMPLES, DIMENSIONS), y.view(-1, EXAMPLES)
        return -((x * z[:, None]).sum(2) - y).square() / 2

    def gradient(self, z: torch.Tensor, step: int) -> torch.Tensor:
        """Of the mean loss on the examples of a step."""
        x, y = self.examples(step, EXAMPLES)
        return x.T @ (x @ z - y) / EXAMPLES

    def loss(self, z: torch.Tensor) -> float:
        """The validation loss."""
        return (self.root.T @ (z - self.best)).square().sum().item() / 2


def points(population: Any) -> torch.Tensor:
    """The members' z, ``[N, 8]``."""
    stack = population.block(range(len(population)))[NAME]
    z = (stack.b if stack.a is None else stack.b @ stack.a)[..., 0]
    if stack.coefficient is not None:
        z = stack.coefficient[:, None] * z.repeat_interleave(len(stack.coefficient) // len(z), 0)
    return (z + population.shared[NAME][:, 0] if NAME in population.shared else z).double()


def method_of(arm: str, setting: dict[str, float]) -> Method:
    if arm == "openai_es":
        method = make_method(arm, population=POPULATION, decay="linear", **setting)
    else:
        options = VARIANTS[arm] | setting | {"spread": sqrt(2 * setting["diffusion"])}
        method = make_method("replicator", population=POPULATION, rank=1, factors="b", **options)
    assert isinstance(method, Method)
    return method


def run(arm: str, setting: dict[str, float], seed: int) -> dict[str, float]:
    """The validation losses that a search ends with, by what is exported."""
    proxy = Proxy(seed)
    if arm in GRADIENTS:
        return {"best": adam(proxy, EVALUATIONS // GRADIENTS[arm], **setting)}
    method = method_of(arm, setting)
    state = method.init(TEMPLATE, seed, START)
    for step in range(STEPS):
        rewards = proxy.rewards(points(method.ask(state)), step, arm == "own_minibatches")
        state, _ = method.tell(state, rewards, (step + 1) / STEPS)
    if arm == "openai_es":
        return {"best": proxy.loss(points(method.mean(state))[0])}
    exported = {export: method.model_copy(update={"export": export}) for export in EXPORTS}
    return {export: proxy.loss(points(one.mean(state))[0]) for export, one in exported.items()}


def adam(proxy: Proxy, steps: int, lr: float, beta2: float) -> float:
    """Adam (Kingma & Ba, arXiv 1412.6980) with linear decay."""
    z, first, second = (torch.zeros(DIMENSIONS, dtype=torch.float64) for _ in range(3))
    for step in range(steps):
        gradient = proxy.gradient(z, step)
        first = 0.9 * first + 0.1 * gradient
        second = beta2 * second + (1 - beta2) * gradient.square()
        size = lr * (1 - step / steps) / (1 - 0.9 ** (step + 1))
        z = z - size * first / ((second / (1 - beta2 ** (step + 1))).sqrt() + 1e-8)
    return proxy.loss(z)


def grid(arm: str) -> dict[str, tuple[float, ...]]:
    if arm in GRADIENTS:
        return ADAM
    if arm == "openai_es":
        return ES
    return STANDARD if VARIANTS[arm].get("standardise") else GRID


def tune(arm: str) -> dict[str, Any]:
    """For each export the setting of the least mean loss on the tuning seeds."""
    axes = grid(arm)
    tried: list[tuple[dict[str, float], dict[str, float]]] = []
    for values in product(*axes.values()):
        setting = dict(zip(axes, values, strict=True))
        losses = [run(arm, setting, seed) for seed in TUNING]
        tried.append(
            (setting, {export: float(np.mean([loss[export] for loss in losses])) for export in losses[0]})
        )
    chosen = {}
    for export in tried[0][1]:
        setting, losses_ = min(tried, key=lambda one: one[1][export])
        edges = [axis for axis, value in setting.items() if value in (axes[axis][0], axes[axis][-1])]
        chosen[export] = {"setting": setting, "loss": losses_[export], "at_edge": edges}
    return chosen


def settings() -> dict[str, Any]:
    """All that a number depends on, as JSON gives it back."""
    found = {
        "dimensions": DIMENSIONS, "evaluations": EVALUATIONS, "examples": EXAMPLES, "noise": NOISE,
        "spectrum": SPECTRUM, "population": POPULATION, "steps": STEPS, "seeds": SEEDS, "tuning": TUNING,
        "grids": {arm: grid(arm) for arm in ARMS}, "variants": VARIANTS, "gradients": GRADIENTS,
    }  # fmt: skip
    return json.loads(json.dumps(found))


def summarise(record: dict[str, Any]) -> dict[str, Any]:
    """Means, spreads, tests and verdict from the losses alone."""
    losses = {
        (arm, export): np.array(found) for arm in ARMS for export, found in record["losses"][arm].items()
    }
    rows = [
        {"arm": arm, "export": export, "loss": float(found.mean()), "sd": float(found.std(ddof=1))}
        for (arm, export), found in losses.items()
    ]
    against = []
    for arm, export in losses:
        if arm in VARIANTS and arm != "plain":
            found = paired_difference(losses[arm, export], losses["plain", export])
            wins = int((losses[arm, export] < losses["plain", export]).sum())
            against.append({"arm": arm, "export": export, "wins": wins} | found._asdict())
    plain = min((losses["plain", export] for export in EXPORTS), key=lambda found: float(found.mean()))
    gradient = paired_difference(losses["adam_three", "best"], plain)
    start = np.array(record["start"])
    verdict = {
        "mechanism_holds": bool((plain < start / 2).all()),
        "tuned_gradient_not_beaten": bool(gradient.value < 0 and gradient.p < 0.05),
    }
    return {
        "summary": rows,
        "minus_plain": against,
        "adam_three_minus_plain": gradient._asdict(),
        "plain_below_start": int((plain < start).sum()),
        "plain_below_half": int((plain < start / 2).sum()),
        "verdict": verdict,
    }


def table(record: dict[str, Any]) -> str:
    """The table of docs/methods.md: mean and standard deviation over the seeds."""
    rows = {(row["arm"], row["export"]): row for row in record["summary"]}
    tests = {(test["arm"], test["export"]): test for test in record["minus_plain"]}
    lines = ["| arm | best candidate | weighted mean | better than plain (best, mean) |", "|---|---|---|---|"]
    for arm in ARMS:
        cells = []
        for export in EXPORTS:
            row = rows.get((arm, export))
            cells.append("" if row is None else f"{row['loss']:.4f} ± {row['sd']:.4f}")
        found = [tests[arm, export] for export in EXPORTS if (arm, export) in tests]
        won = ", ".join(f"{test['wins']} of {len(SEEDS)} (p = {test['p']:.4f})" for test in found)
        lines.append(f"| {arm.replace('_', ' ')} | {cells[0]} | {cells[1]} | {won} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=RESULTS / "replicator_proxy.json")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    record: dict[str, Any] = {"study": "replicator_proxy", "settings": settings(), "chosen": {}, "losses": {}}
    record["start"] = [Proxy(seed).loss(torch.zeros(DIMENSIONS, dtype=torch.float64)) for seed in SEEDS]
    for arm in ARMS:
        chosen = record["chosen"][arm] = tune(arm)
        record["losses"][arm] = {
            export: [run(arm, one["setting"], seed)[export] for seed in SEEDS]
            for export, one in chosen.items()
        }
        print(arm, {e: (c["setting"], c["at_edge"]) for e, c in chosen.items()}, flush=True)
    record |= summarise(record) | {"provenance": collect()}
    out.parent.mkdir(exist_ok=True)
    write_atomically(out, json.dumps(record, indent=1) + "\n")
    print(table(record), json.dumps(record["verdict"]), sep="\n")


if __name__ == "__main__":
    main()
