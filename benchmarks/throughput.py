"""Runs the full bench and leaves its record: python benchmarks/throughput.py [--quick] [OUT.json].

The record goes to results/bench/throughput.json unless another file is named: the rows that docs quote come
from there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from evolora.bench import plan, throughput
from evolora.cli.output import plain
from evolora.cli.progress import make_progress
from evolora.engine import load_base
from evolora.runs import atomic, provenance

OUT = Path(__file__).resolve().parents[1] / "results" / "bench" / "throughput.json"
MODEL = "smollm2-135m"


def main(arguments: list[str]) -> None:
    quick = "--quick" in arguments
    names = [argument for argument in arguments if not argument.startswith("-")]
    made_with = provenance.collect()
    out = Path(names[0]) if names else OUT
    out.parent.mkdir(parents=True, exist_ok=True)
    measured = []
    for dtype in plan.dtypes(None, quick=quick):
        measured.append(throughput.run(load_base(MODEL, dtype=dtype), quick, make_progress()))
        record = {
            "name": "throughput",
            "model": MODEL,
            "quick": quick,
            "provenance": made_with | {"argv": ["benchmarks/throughput.py", *arguments]},
            "torch_threads": torch.get_num_threads(),
            **throughput.join(measured),
        }
        atomic.write_atomically(out, json.dumps(plain(record), indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
