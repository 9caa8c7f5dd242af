"""Rows of kind ``memory``: the peak of large populations against small ones, each in its own process.

Run as a module this is that process: it loads a base, runs a population once, and prints what it took.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evolora.bench.plan import MemoryCase
from evolora.errors import EvoloraError

if TYPE_CHECKING:
    from evolora.engine import Base, Engine

_MEGABYTE = 2**20
_SECONDS = 600


def measure(engine: Engine, case: MemoryCase) -> dict[str, Any]:
    """One row. ``ratio`` is the peak with ``members`` over the peak with ``against``; lower is better.

    The peaks hold everything: Python, libraries, the base, the block of members at work, activations.
    """
    base = engine.base
    row: dict[str, Any] = {
        "kind": "memory",
        "members": case.members,
        "rank": case.rank,
        "targets": case.targets,
        "rows_per_member": case.rows,
        "tokens": case.tokens,
        "dtype": str(base.dtype).removeprefix("torch."),
        "against_members": case.against,
        "ratio": None,
        "reasons": {},
    }
    found = []
    for members in (case.members, case.against):
        try:
            found.append(_peak(base, replace(case, members=members)))
        except (EvoloraError, OSError, subprocess.SubprocessError) as error:
            row["reasons"]["ratio"] = f"a fresh process cannot measure it: {error}"
            return row
    large, small = found
    return row | {
        "ratio": large["peak"] / small["peak"],
        "peak_mb": large["peak"] / _MEGABYTE,
        "peak_mb_against": small["peak"] / _MEGABYTE,
        "loaded_mb": small["loaded"] / _MEGABYTE,
    }


def _peak(base: Base, case: MemoryCase) -> dict[str, int]:
    import torch

    order = asdict(case) | {
        "base": base.name,
        "dtype": str(base.dtype).removeprefix("torch."),
        "device": str(base.device),
        "threads": torch.get_num_threads(),
    }
    command = [sys.executable, "-m", "evolora.bench.memory", json.dumps(order)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    answer = done.stdout.strip().splitlines()[-1:] or ["{}"]
    try:
        peak = json.loads(answer[0])
    except json.JSONDecodeError:
        peak = {}
    if done.returncode or "peak" not in peak:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise EvoloraError(last, where=base.name)
    return {name: int(value) for name, value in peak.items()}


def _main(order: dict[str, Any]) -> dict[str, int]:
    import torch

    from evolora.bench.members import last_logits, noise, token_rows
    from evolora.engine import Engine, load_base

    torch.set_num_threads(order["threads"])
    base = load_base(order["base"], dtype=order["dtype"], device=order["device"])
    loaded = _resident(base.device)
    population = noise(base.modules(order["targets"]), order["members"], order["rank"])
    last_logits(Engine(base), population, token_rows(base, order["rows"], order["tokens"]))
    return {"loaded": loaded, "peak": _resident(base.device)}


def _resident(device: Any) -> int:
    """The process's peak so far in bytes: resident memory, or on a GPU what its allocator held."""
    if device.type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    status = Path("/proc/self/status")
    if status.exists():  # ru_maxrss would count the parent's memory too: a child inherits that record
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    print(json.dumps(_main(json.loads(sys.argv[1]))))
