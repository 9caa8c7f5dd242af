"""Rows of kind ``forward``: one pass for all members against the plain base and the peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evolora.adapters import Stacked
from evolora.bench.comparison import Comparison
from evolora.bench.members import adapters, last_logits, noise, token_rows
from evolora.bench.peers import CopyLoop, MergeLoop, PeftAdapters
from evolora.bench.plan import ForwardCase
from evolora.bench.twin import last, twin

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.adapters import Adapter
    from evolora.engine import Base, Engine


def measure(engine: Engine, case: ForwardCase, rounds: int) -> dict[str, Any]:
    """One row.

    ``fraction_of_base`` is the speed of a population of low-rank noise, the noise's making included,
    where 1 is that of the plain base on as many rows. ``fraction_of_adapters`` is that of existing adapters,
    in memory before the clock starts, as PEFT's are.

    PEFT's two ways are compared with the existing adapters; the copy loop and the merge loop, by which
    evolution strategies are run elsewhere, with the noise (theirs is in memory before the clock starts).
    """
    base = engine.base
    specs = base.modules(case.targets)
    population = noise(specs, case.members, case.rank)
    held = adapters(population)
    stacked = Stacked(held)
    ids = token_rows(base, case.rows, case.tokens)
    looped = min(case.looped or case.members, case.members)

    match = Comparison(base)
    match.add("adapters", lambda: last_logits(engine, stacked, ids))
    match.add("noise", lambda: last_logits(engine, population, ids))
    plain = twin(base)
    match.add("base", lambda: _plain(plain, ids, case.members, engine.max_tokens), compare=False)
    if case.peers:
        _add_peers(match, base, held, ids, looped, pairs=population.group == 2)

    timings = match.run(rounds)
    return {
        "kind": "forward",
        "members": case.members,
        "rank": case.rank,
        "targets": case.targets,
        "rows_per_member": case.rows,
        "tokens": case.tokens,
        "dtype": str(base.dtype).removeprefix("torch."),
        "fraction_of_base": timings.ratio("base", "noise"),
        "fraction_range": timings.spread("base", "noise"),
        "fraction_of_adapters": timings.ratio("base", "adapters"),
        "vs_peft_loop": timings.ratio("peft_loop", "adapters"),
        "vs_peft_mixed": timings.ratio("peft_mixed", "adapters"),
        "vs_copy_loop": timings.ratio("copy_loop", "noise"),
        "vs_merge_restore": timings.ratio("merge_restore", "noise"),
        "agrees": match.agree,
        "extrapolated_from": looped if case.peers and looped < case.members else None,
        "reasons": match.reasons,
    }


def _add_peers(
    match: Comparison, base: Base, held: list[Adapter], ids: Tensor, looped: int, *, pairs: bool
) -> None:
    part = len(held) / looped
    with match.making("peft_loop", "peft_mixed"):
        peft = PeftAdapters(base, held)
        match.add("peft_loop", lambda: peft.loop(ids, looped), of=part)
        match.add("peft_mixed", lambda: peft.mixed(ids))
    with match.making("copy_loop"):
        copied = CopyLoop(base, held, pairs=pairs)
        match.add("copy_loop", lambda: copied.loop(ids, looped), of=part)
    with match.making("merge_restore"):
        merged = MergeLoop(base, held)
        match.add("merge_restore", lambda: merged.loop(ids, looped), of=part)


def _plain(model: Any, ids: Tensor, members: int, max_tokens: int) -> Tensor:
    """The plain base on the rows of all members, cut into passes no longer than the engine's."""
    import torch

    rows = ids.repeat(members, 1)
    with torch.inference_mode():
        return torch.cat([last(model, part) for part in rows.split(max(1, max_tokens // ids.shape[1]))])
