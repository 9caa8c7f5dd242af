"""Every method on two tasks from the exact 0/1 reward, at equal forward FLOPs: results/methods.json.

    python benchmarks/methods.py                        all cells that are not recorded yet
    python benchmarks/methods.py --sentiment FILE       rows like {"sentence": ..., "label": 0 or 1}

Question: what does each method reach within one and the same number of forward FLOPs, its own forward passes
counted wherever they happen (backward passes are named beside)? Nothing is claimed of an order among them:
three seeds cannot carry that, and the gradient methods see more (adamw the answers, grpo its own samples).
What would show a method to be of no use here: a gain whose mean over seeds is not above zero.

    strings    strings/upper:4 from a half-trained LoRA (as in exact_reward.py), the same for every method
    sentiment  film reviews (recorded: sentence polarity v1.0) from the base as it is

Options are the defaults where nothing stands in ARMS. What stands there brings a method's unit to that of the
task (a perturbation of B is smaller in the weights than one of W); it was set from a few trials of EGGROLL on
seed 0, not tuned for each: read the table as what comes out of the box, not as what a method can do.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from exact_reward import divided, half_trained

import evolora as ev
from evolora.adapters import Adapter
from evolora.loop import Loop
from evolora.progress import Progress
from evolora.runs.atomic import write_atomically
from evolora.runs.provenance import collect

OUT = Path(__file__).parents[1] / "results" / "methods.json"
FORWARD_FLOPS = 1e13
LAYERS, BATCH, SEEDS = {"strings": "top:10", "sentiment": "top:4"}, 32, (1, 2, 3)
AS_EGGROLL = {"sigma": 0.02, "lr": 0.5, "antithetic": True, "shaping": "pair_rms", "decay": "linear"}
TWO_POINTS = {"sigma": 0.02, "lr": 0.001}
ARMS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "eggroll": ("eggroll", {"strings": {"sigma": 0.02, "lr": 0.5}, "sentiment": {"lr": 0.5}}),
    "eggroll on factors": (
        "eggroll",
        {
            "strings": {"space": "factors", "sigma": 0.08, "export_rank": 8},
            "sentiment": {"space": "factors", "sigma": 0.3},
        },
    ),
    "decomposed": ("decomposed", {"strings": {"sigma": 0.08}, "sentiment": {"sigma": 0.3}}),
    "openai_es": ("openai_es", {}),
    "openai_es, eggroll's settings": (
        "openai_es",
        {"strings": AS_EGGROLL, "sentiment": AS_EGGROLL},
    ),
    "mezo": ("mezo", {"strings": TWO_POINTS, "sentiment": TWO_POINTS}),
    "replicator": ("replicator", {}),
    "cma": ("cma", {}),
    "random_search": ("random_search", {}),
    "grpo": ("grpo", {}),
    "adamw": ("adamw", {}),
}
SIZES = {"train": 656, "validation": 100, "test": 200}


def specs(sentiment: Path | None) -> dict[str, str]:
    """The table's columns and what ``load_task`` takes for them."""
    return {
        "strings": "strings/upper:4",
        "sentiment": f"sentiment:{sentiment}" if sentiment else "sentiment",
    }


@dataclass
class Setting:
    """What all methods of one task and seed have in common."""

    problem: ev.Problem
    start: Adapter | None

    @cached_property
    def before(self) -> ev.Evaluation:
        """How what everyone begins at does on the test."""
        return tested(self.problem, self.start)


def setting(base: ev.Base, name: str, spec: str, seed: int) -> Setting:
    """The prompts, and the adapter that everyone begins at."""
    task = ev.load_task(spec, seed=seed, **({} if name == "things" else SIZES))
    engine, exact = ev.Engine(base), ev.load_reward("exact")
    template, start = base.modules("all-linear", LAYERS.get(name, "top:4")), None
    if name == "strings":
        lessons, task = divided(task)
        start = half_trained(ev.Problem(engine, lessons, exact, 16, seed, template=template), seed)
    return Setting(ev.Problem(engine, task, exact, BATCH, seed, template=template), start)


def tested(problem: ev.Problem, adapter: Adapter | None) -> ev.Evaluation:
    """Its completions of the test prompts, judged."""
    prompts, length, stop = problem.task.test, problem.max_new_tokens, problem.task.stop
    return ev.evaluate(problem.engine, adapter, prompts, problem.reward, length, stop=stop)[0]


def cell(given: Setting, name: str, arm: str, seed: int) -> dict[str, Any]:
    """One run; nothing of it is chosen on the test prompts that it reports."""
    name_of_method, options = ARMS[arm]
    method = ev.make_method(name_of_method, **options.get(name, {}))
    budget = ev.Budget(forward_flops=FORWARD_FLOPS)
    search = Loop(given.problem, method, budget, None, Progress(), seed, given.start, None)
    began = time.process_time()
    search.go()
    seconds = time.process_time() - began
    adapted = tested(given.problem, method.adapter(search.result))
    return {
        "steps": search.state.step,
        "start": given.before.accuracy,
        "adapted": adapted.accuracy,
        "difference": ev.difference(given.before, adapted),
        "ledger": search.ledger.snapshot(),
        "cpu_seconds": seconds,
    }


def made_with() -> dict[str, Any]:
    """The provenance, files of this machine by their names alone."""
    facts = collect()
    named = [Path(word).name if Path(word).is_absolute() else word for word in facts["argv"]]
    return facts | {"argv": named}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentiment", type=Path)
    parser.add_argument("--only", nargs="+", default=list(ARMS))
    given = parser.parse_args()
    settings = {"forward_flops": FORWARD_FLOPS, "layers": LAYERS, "batch": BATCH, "reward": "exact"}
    record: dict[str, Any] = {"study": "methods", **settings, "cells": []}
    if OUT.exists():
        record = json.loads(OUT.read_text())
    record["cells"] = [c for c in record["cells"] if c["options"] == ARMS[c["arm"]][1].get(c["task"], {})]
    done = {(c["task"], c["arm"], c["seed"]) for c in record["cells"]}
    base = ev.load_base("smollm2-135m")
    for seed in SEEDS:
        for task, spec in specs(given.sentiment).items():
            common = None
            for arm in given.only:
                if (task, arm, seed) in done:
                    continue
                common = common or setting(base, task, spec, seed)
                found = cell(common, task, arm, seed)
                made = {"task": task, "arm": arm, "seed": seed, "options": ARMS[arm][1].get(task, {})}
                record["provenance"] = made_with()
                record["cells"].append(made | found | {"git": record["provenance"]["git"]})
                write_atomically(OUT, json.dumps(record, indent=1) + "\n")
                print(task, arm, seed, found["steps"], found["start"], found["adapted"], flush=True)


if __name__ == "__main__":
    main()
