"""Rows of kind ``step``: a whole step of a search against scoring as many rows by the plain base."""

from __future__ import annotations

from typing import Any

from evolora.bench.comparison import Comparison
from evolora.bench.members import Search, texts
from evolora.bench.plan import StepCase
from evolora.engine import Engine


def measure(engine: Engine, case: StepCase, rounds: int) -> dict[str, Any]:
    """One row.

    ``cost`` is the time of ask, score and tell over that of scoring as many rows with the base; lower is
    better, 1 would be a search for free.
    """
    base = engine.base
    search = Search(base.modules(case.targets), case.members, case.rank)
    prompts, answers = texts(case.rows, sentences=5), [" it is the one that"] * case.rows

    def step() -> None:
        search.tell(engine.log_likelihood(search.ask(), prompts, answers))

    match = Comparison(base)
    match.add("base", lambda: engine.log_likelihood(None, prompts * case.members, answers * case.members))
    match.add("step", step, compare=False)
    timings = match.run(rounds)
    return {
        "kind": "step",
        "members": case.members,
        "rank": case.rank,
        "targets": case.targets,
        "rows_per_member": case.rows,
        "tokens": sum(len(base.encode(p + a)) for p, a in zip(prompts, answers, strict=True)) // case.rows,
        "dtype": str(base.dtype).removeprefix("torch."),
        "cost": timings.ratio("step", "base"),
        "cost_range": timings.spread("step", "base"),
    }
