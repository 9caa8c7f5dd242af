"""Rows of kind ``prefix``: adapters on the top layers only, the layers below run once per prompt."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from evolora.bench.comparison import Comparison
from evolora.bench.members import last_logits, noise, token_rows
from evolora.bench.plan import PrefixCase
from evolora.engine import Engine


def measure(engine: Engine, case: PrefixCase, rounds: int) -> Iterator[dict[str, Any]]:
    """One row for each share of the layers.

    ``vs_full_depth`` compares with adapters on all layers, ``vs_no_reuse`` with the same adapters where
    every member runs every layer. ``identical`` says whether both give the same bits.
    """
    base = engine.base
    ids = token_rows(base, case.rows, case.tokens)
    unshared = Engine(base, max_tokens=engine.max_tokens, prefix_reuse=False)
    whole = noise(base.modules(case.targets), case.members, case.rank)
    match = Comparison(base)
    match.add("whole", lambda: last_logits(engine, whole, ids))
    depths = [max(1, round(base.depth * share)) for share in case.shares]
    identical = {}
    for depth in depths:
        top = noise(base.modules(case.targets, f"top:{depth}"), case.members, case.rank)
        identical[depth] = bool(last_logits(engine, top, ids).equal(last_logits(unshared, top, ids)))
        match.add(f"reuse {depth}", partial(last_logits, engine, top, ids), compare=False)
        match.add(f"apart {depth}", partial(last_logits, unshared, top, ids), compare=False)
    timings = match.run(rounds)
    for depth in depths:
        yield {
            "kind": "prefix",
            "members": case.members,
            "rank": case.rank,
            "targets": case.targets,
            "layers": f"top {depth} of {base.depth}",
            "rows_per_member": case.rows,
            "tokens": case.tokens,
            "dtype": str(base.dtype).removeprefix("torch."),
            "vs_full_depth": timings.ratio("whole", f"reuse {depth}"),
            "vs_no_reuse": timings.ratio(f"apart {depth}", f"reuse {depth}"),
            "identical": identical[depth],
        }
