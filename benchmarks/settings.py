"""How a method's settings were chosen for a 0/1 reward on the bundled model: results/settings.json.

    python benchmarks/settings.py                   all that is not recorded yet
    python benchmarks/settings.py --only replicator

Every setting is tried once, with seed 0, and scored on prompts that no table reports: the share of exactly
right answers, teacher-forced, of the adapter that comes out of half the budget of methods.py. One seed on a
hundred prompts ranks settings roughly (differences below 0.1 mean nothing): a choice, not a finding. What
was chosen is reported by methods.py, on other seeds and prompts.

    strings   strings/upper:4 from the half-trained LoRA of exact_reward.py
    things    the demonstration's questions from the base as it is
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from methods import FORWARD_FLOPS, Setting, made_with, setting

import evolora as ev
from evolora.loop import Loop
from evolora.progress import Progress
from evolora.runs.atomic import write_atomically

OUT = Path(__file__).parents[1] / "results" / "settings.json"
SEED = 0
TRIES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "replicator": (
        "strings",
        [
            {"diffusion": 2e-3, "spread": 0.05},
            {"diffusion": 1e-4, "spread": 0.05},
            {"diffusion": 1e-4, "spread": 0.02},
            {"diffusion": 1e-4, "spread": 0.05, "kappa": 10},
            {"diffusion": 1e-5, "spread": 0.05},
            {"diffusion": 1e-3, "spread": 0.05, "recombine": "step", "resample_first": True},
            {"diffusion": 1e-4, "spread": 0.05, "population": 16},
            {"diffusion": 1e-3, "spread": 0.05, "population": 32, "recombine": "step"},
        ],
    ),
    "decomposed": (
        "strings",
        [
            {},
            {"sigma": 0.08},
            {"sigma": 0.08, "sigma_magnitude": 0.005},
            {"sigma": 0.12},
            {"sigma": 0.08, "lr": 0.5, "lr_magnitude": 0.5},
        ],
    ),
    "eggroll": (
        "things",
        [
            {"sigma": 0.03},
            {},
            {"population": 16},
            {"sigma": 0.03, "lr": 0.1},
            {"space": "factors", "sigma": 0.3},
        ],
    ),
}


def score(given: Setting, method: str, options: dict[str, Any]) -> dict[str, Any]:
    """One setting's search, judged on validation prompts."""
    searched, began = ev.make_method(method, **options), time.process_time()
    budget = ev.Budget(forward_flops=FORWARD_FLOPS / 2)
    search = Loop(given.problem, searched, budget, None, Progress(), SEED, given.start, None)
    search.go()
    return {
        "right": right(given, searched.adapter(search.result)),
        "steps": search.state.step,
        "cpu_seconds": time.process_time() - began,
    }


def right(given: Setting, adapter: ev.Adapter | None) -> float:
    """The share of exactly right answers to validation prompts; where they are few, training prompts too."""
    task = given.problem.task
    examples = task.validation if len(task.validation) >= 100 else task.train + task.validation
    return given.problem.judge(adapter, examples).values.double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(TRIES), default=list(TRIES))
    only = parser.parse_args().only
    record: dict[str, Any] = {
        "study": "settings",
        "seed": SEED,
        "forward_flops": FORWARD_FLOPS / 2,
        "rows": [],
    }
    if OUT.exists():
        record = json.loads(OUT.read_text())
    base = ev.load_base("smollm2-135m")
    for name in dict.fromkeys(TRIES[method][0] for method in only):
        given = setting(base, name, {"strings": "strings/upper:4"}.get(name, name), SEED)
        before = right(given, given.start)
        for method in only:
            for options in TRIES[method][1] if TRIES[method][0] == name else ():
                key = {"task": name, "method": method, "options": options}
                if any(key.items() <= row.items() for row in record["rows"]):
                    continue
                record["provenance"] = made_with()
                found = {"start": before} | score(given, method, options)
                record["rows"].append(key | found | {"git": record["provenance"]["git"]})
                write_atomically(OUT, json.dumps(record, indent=1) + "\n")
                print(record["rows"][-1], flush=True)


if __name__ == "__main__":
    main()
