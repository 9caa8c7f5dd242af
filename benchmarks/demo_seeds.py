"""Runs the demonstration with several seeds and records what came out in results/demo.json.

    python benchmarks/demo_seeds.py --seeds 0 1 2

What would falsify the claim "a 0/1 reward alone teaches the bundled model the form of an answer": any seed
whose paired 95 % interval on the test prompts (never used for choosing anything) reaches down to zero.
"""

import argparse
import json
import tempfile
from pathlib import Path

from evolora.job import carry_out, demo_config
from evolora.runs.atomic import write_atomically
from evolora.runs.provenance import collect

RESULTS = Path(__file__).parents[1] / "results"
KEPT = (
    "seed",
    "base",
    "adapted",
    "difference",
    "steps",
    "stopped",
    "ledger",
    "testing",
    "task",
    "reward",
    "method",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=RESULTS / "demo.json")
    options = parser.parse_args()
    runs, config = [], {}
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            settings = demo_config(seed, Path(folder) / "run")
            result = carry_out(settings)
        config = {k: v for k, v in settings.record().items() if k not in ("out", "seed")}
        runs.append({key: result[key] for key in KEPT})
        print(
            seed, result["base"]["accuracy"], result["adapted"]["accuracy"], result["difference"], flush=True
        )
    holds = all(run["difference"]["ci"][0] > 0 for run in runs)
    record = {"study": "demo", "holds": holds, "config": config, "runs": runs, "provenance": collect()}
    options.out.parent.mkdir(exist_ok=True)
    write_atomically(options.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
