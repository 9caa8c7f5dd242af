"""Every method on two tasks from the exact 0/1 reward, at equal forward FLOPs: results/methods.json.

    python benchmarks/methods.py                        all cells that are not recorded yet
    python benchmarks/methods.py --sentiment FILE       rows of SST-2: {"sentence": ..., "label": 0 or 1}

Question: what does each method reach within one and the same number of forward FLOPs, its own forward passes
counted wherever they happen (backward passes are named beside)? Nothing is claimed of an order among them:
three seeds cannot carry that, and the gradient methods see more (adamw the answers, grpo its own samples).
What would show a method to be of no use here: a gain whose mean over seeds is not above zero.

Options are the methods' defaults; where a default belongs to another scale of reward or model, one was chosen
on seed 100 (validation prompts) and stands in ARMS.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import evolora as ev
from evolora.adaptation import improve
from evolora.runs.atomic import write_atomically
from evolora.runs.provenance import collect

OUT = Path(__file__).parents[1] / "results" / "methods.json"
FORWARD_FLOPS = 1e13
LAYERS, BATCH, SEEDS = "top:4", 32, (0, 1, 2)
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "eggroll": ("eggroll", {}),
    "eggroll (factors)": ("eggroll", {"space": "factors"}),
    "decomposed": ("decomposed", {}),
    "openai_es": ("openai_es", {}),
    "mezo": ("mezo", {}),
    "replicator": ("replicator", {}),
    "cma": ("cma", {}),
    "random_search": ("random_search", {}),
    "grpo": ("grpo", {}),
    "adamw": ("adamw", {}),
}
SIZES = {"train": 400, "validation": 100, "test": 200}


def tasks(sentiment: Path | None) -> dict[str, dict[str, Any]]:
    """Task names to the arguments of ``load_task``."""
    known: dict[str, dict[str, Any]] = {"strings": {"spec": "strings", "shots": 4, **SIZES}}
    known["sentiment"] = {"spec": f"sentiment:{sentiment}" if sentiment else "sentiment", **SIZES}
    return known


def cell(base: ev.Base, arguments: dict[str, Any], arm: str, seed: int) -> dict[str, Any]:
    """One run; nothing of it is chosen on the test prompts that it reports."""
    method, options = ARMS[arm]
    task = ev.load_task(**arguments, seed=seed)
    problem = ev.Problem(
        ev.Engine(base),
        task,
        ev.load_reward("exact"),
        BATCH,
        seed,
        template=base.modules("all-linear", LAYERS),
    )
    began = time.process_time()
    found = improve(
        problem, ev.make_method(method, **options), ev.Budget(forward_flops=FORWARD_FLOPS), seed=seed
    )
    return {
        "steps": found.steps,
        "base": found.base.accuracy,
        "adapted": found.adapted.accuracy,
        "difference": found.difference,
        "ledger": found.ledger.snapshot(),
        "cpu_seconds": time.process_time() - began,
    }


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
    done = {(c["task"], c["arm"], c["seed"]) for c in record["cells"] if c["options"] == ARMS[c["arm"]][1]}
    record["cells"] = [c for c in record["cells"] if (c["task"], c["arm"], c["seed"]) in done]
    base = ev.load_base("smollm2-135m")
    for seed in SEEDS:
        for task, arguments in tasks(given.sentiment).items():
            for arm in given.only:
                if (task, arm, seed) in done:
                    continue
                found = cell(base, arguments, arm, seed)
                key = {"task": task, "arm": arm, "seed": seed, "options": ARMS[arm][1]}
                record["cells"].append(key | found)
                record["provenance"] = collect()
                write_atomically(OUT, json.dumps(record, indent=1) + "\n")
                print(task, arm, seed, found["steps"], found["base"], found["adapted"], flush=True)


if __name__ == "__main__":
    main()
