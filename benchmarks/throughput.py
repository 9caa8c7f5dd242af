"""Runs the full bench and leaves its record.

    python benchmarks/throughput.py [--quick] [--only KIND] [--no-peers] [OUT.json]

The record goes to results/bench/throughput.json unless another file is named: the rows that docs quote come
from there. With ``--only`` the rows of one kind (forward, generation, prefix, step, memory) are measured
again and take the place of the old ones; each row says when it began. ``--no-peers`` leaves PEFT and the
loops out of the forward rows: what the fraction of the base needs. The fractions on one thread
(``OMP_NUM_THREADS=1``) are in results/bench/one_thread.json.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from evolora.bench import plan, throughput
from evolora.cli.output import plain
from evolora.cli.progress import make_progress
from evolora.engine import load_base
from evolora.runs import atomic, provenance

OUT = Path(__file__).resolve().parents[1] / "results" / "bench" / "throughput.json"
MODEL = "smollm2-135m"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("forward", "generation", "prefix", "step", "memory"))
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("out", nargs="?", type=Path, default=OUT)
    given = parser.parse_args()
    made_with = provenance.collect()
    kept = []
    if given.only and given.out.exists():
        kept = [row for row in json.loads(given.out.read_text())["rows"] if row["kind"] != given.only]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    measured: list[dict[str, Any]] = []
    whole = plan.QUICK if given.quick else plan.FULL
    for dtype in plan.dtypes(None, quick=given.quick):
        cases = tuple(case for case in whole.of(dtype) if given.only in (None, case.kind))
        if given.no_peers:
            cases = tuple(replace(c, peers=False) if isinstance(c, plan.ForwardCase) else c for c in cases)
        if not cases:
            continue
        some = replace(whole, cases=cases, half=cases)
        found = throughput.run(load_base(MODEL, dtype=dtype), progress=make_progress(), plan=some)
        began = {"began": made_with["started"]}
        measured.append({**found, "rows": [row | began for row in found["rows"]]})
        record = {
            "name": "throughput",
            "model": MODEL,
            "quick": given.quick,
            "provenance": made_with,
            "torch_threads": torch.get_num_threads(),
            **throughput.join([{"rows": kept}, *measured]),
        }
        atomic.write_atomically(given.out, json.dumps(plain(record), indent=1) + "\n")


if __name__ == "__main__":
    main()
