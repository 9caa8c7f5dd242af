"""The bench: all cases of a plan on one base, as rows of ratios."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from evolora.bench import forward, generation, memory, prefix, step
from evolora.bench.plan import FULL, QUICK, ForwardCase, GenerationCase, Plan, PrefixCase, StepCase
from evolora.bench.timing import clock
from evolora.engine.engine import Engine
from evolora.progress import Progress
from evolora.runs import provenance

if TYPE_CHECKING:
    import torch

    from evolora.bench.plan import Case
    from evolora.engine.base import Base

NOTES = (
    "fraction_of_base: low-rank noise made within the time, around the frozen base; 1 is the plain base "
    "on as many rows. fraction_of_adapters: existing adapters, in memory before the clock starts, as the "
    "peers' are.",
    "vs_...: how many times as fast ours is; PEFT's loop and mixed batch against the list of adapters, "
    "the copy and merge loops against the noise. The peers' adapters are in memory before the clock "
    "starts, in the base's dtype (PEFT's autocast_adapter_dtype=False, its faster setting in half "
    "precision).",
    "Everybody's output head, HF generate's too, gets the last position as a contiguous block; without "
    "that repair the peers are 10 to 300 times as slow there on a CPU.",
    "With 256 tokens or more per member in one forward a few cores are saturated: there a plain loop is "
    "about as fast as any batching. The gain is in little work per member, in decoding and in shared "
    "prefixes.",
    "extrapolated_from: the one-by-one contestants ran this many members and their time is scaled up; "
    "set_adapter grows with N, so PEFT's loop is flattered by it, if anything.",
    "cost: a search step (ask, score, tell) over the plain base's scoring of as many rows. The search is "
    "on the weights and under way: below float32 its mean is a dense product of its own beside the base's.",
    "agrees: in float32, logits within 1e-4 of the largest, or equal completions. Not compared in half "
    "precision, where results differ with the batching.",
)


def run(
    base: Base, quick: bool = False, progress: Progress | None = None, *, plan: Plan | None = None
) -> dict[str, Any]:
    """Measures one base; all contestants of a case in turn, in this process.

    Args:
        base: decides device and dtype.
        quick: the short plan.
        progress: told of every row.
        plan: what to measure instead of the short or the full plan.

    Returns:
        ``rows`` (one mapping each), ``machine``, ``notes``.
    """
    plan = plan or (QUICK if quick else FULL)
    progress = progress or Progress()
    engine = Engine(base)
    dtype = str(base.dtype).removeprefix("torch.")
    cases = plan.of(dtype)
    progress.start(len(cases), "rows")
    rows: list[dict[str, Any]] = []
    for done, case in enumerate(cases):
        progress.note(f"{dtype}: {case}")
        rows.extend(_rows(engine, case, plan.rounds))
        progress.update(done + 1, {})
    progress.finish()
    return {"rows": rows, "machine": machine(base.device), "notes": list(NOTES)}


def join(measured: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The rows of several bases of one machine in one table."""
    parts = list(measured)
    return {**parts[-1], "rows": [row for part in parts for row in part["rows"]]}


def machine(device: torch.device) -> dict[str, Any]:
    """What the ratios were measured on, and by which clock."""
    facts = provenance.collect()
    versions = facts["versions"]
    return {
        "cpu": facts["cpu"]["model"],
        "cores": facts["cpu"]["usable"],
        "threads": facts["cpu"]["threads"],
        "clock": clock(device)[0],
        "gpus": ", ".join(facts["gpus"]) or None,
        **{name: versions[name] for name in ("torch", "transformers", "peft")},
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
    }


def _rows(engine: Engine, case: Case, rounds: int) -> Iterator[dict[str, Any]]:
    if isinstance(case, ForwardCase):
        yield forward.measure(engine, case, rounds)
    elif isinstance(case, GenerationCase):
        yield generation.measure(engine, case, rounds)
    elif isinstance(case, PrefixCase):
        yield from prefix.measure(engine, case, rounds)
    elif isinstance(case, StepCase):
        yield step.measure(engine, case, rounds)
    else:
        yield memory.measure(engine, case)
