"""Two diagnosed runs on the bundled model, recorded in results/diagnostics_example.json.

    python benchmarks/diagnostics_example.py

The demonstration (EGGROLL, exact match alone) and AdamW on the answers, with the same task, layers, prompts a
step and steps, one seed: what docs/diagnostics.md reads as an example. An example, not a comparison: the two
did not spend the same, and no setting was tuned. Twelve minutes on two cores.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from evolora.job import carry_out, demo_config
from evolora.runs.atomic import write_atomically
from evolora.runs.provenance import collect

RESULTS = Path(__file__).parents[1] / "results"
ARMS: dict[str, dict[str, Any]] = {
    "eggroll": {},
    "adamw": {"method": "adamw", "options": {"rank": 8}, "reward": None},
}
KEPT = ("base", "adapted", "difference", "steps", "stopped", "ledger", "testing", "task", "reward", "method")
WEIGHTY = ("modules", "families")  # one entry a module; the run's own diagnostics.json has them


def light(value: Any) -> Any:
    """The same without what has an entry for every module."""
    if isinstance(value, dict):
        return {key: light(item) for key, item in value.items() if key not in WEIGHTY}
    return value


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "diagnostics_example.json")
    options = parser.parse_args()
    runs = {}
    for name, changes in ARMS.items():
        with tempfile.TemporaryDirectory() as folder:
            settings = demo_config(options.seed, Path(folder) / "run")
            settings = settings.model_copy(update={**changes, "diagnose": True})
            result = carry_out(settings)
        config = {key: value for key, value in settings.record().items() if key != "out"}
        diagnostics = light(result["diagnostics"])
        runs[name] = {"config": config} | light({key: result[key] for key in KEPT})
        runs[name]["diagnostics"] = diagnostics
        print(name, result["base"]["accuracy"], result["adapted"]["accuracy"], flush=True)
    record = {"study": "diagnostics_example", "runs": runs, "provenance": collect()}
    options.out.parent.mkdir(exist_ok=True)
    write_atomically(options.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
