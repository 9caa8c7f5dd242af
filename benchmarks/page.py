"""Writes docs/benchmarks.md from the records in results/bench: python benchmarks/page.py.

The page is the records as tables, so a number on it cannot differ from what was measured; a test compares.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
RECORDS = ("throughput", "one_thread")
CASE = ("members", "rows_per_member", "tokens", "rank", "dtype")
TABLES = {
    "forward": (
        "One forward pass for all members",
        (
            "fraction_of_base",
            "fraction_of_adapters",
            "vs_peft_loop",
            "vs_peft_mixed",
            "vs_copy_loop",
            "vs_merge_restore",
        ),
    ),
    "generation": (
        "Generation",
        ("targets", "fraction_of_base", "vs_sequential", "vs_peft_loop", "vs_peft_mixed"),
    ),
    "prefix": (
        "Adapters on the top layers: the layers below run once per prompt",
        ("layers", "vs_full_depth", "vs_no_reuse", "identical"),
    ),
    "step": ("A whole search step over the forward passes in it", ("cost",)),
    "memory": ("Peak memory, many members against few", ("against_members", "ratio", "peak_mb")),
}


INTRODUCTION = """\
Ratios from one run of `benchmarks/throughput.py` ({cpu}, {threads} threads, torch {torch}, transformers
{transformers}, PEFT {peft}, the bundled model). The record is `results/bench/throughput.json`; this
page is made from it by `benchmarks/page.py`. `evolora bench` measures the same on your machine.
Fractions of the base: 1 is the plain base on as many rows. Ratios to others: above 1, ours is faster."""
LIMITS = """\
- In bfloat16 a search on the weights pays for its mean: `x D^T` is a product as large as the base's
  own, because a sum in half precision would swallow a small mean. That is the cost of the bfloat16 step
  above. In float32 the two are one.
- Many members of one short row each leave the base's own products small: the fraction of the base
  falls, most in bfloat16, while the lead over the peers grows.
- On two threads the making of the noise runs on one.
- No GPU has run this yet."""


def page(record: Mapping[str, Any], one_thread: Mapping[str, Any]) -> str:
    """The text of the page."""
    facts = record["machine"] | {"threads": record["torch_threads"]}
    parts = ["# Benchmarks", INTRODUCTION.format_map(facts)]
    for kind, (title, columns) in TABLES.items():
        parts += [f"## {title}", table(rows_of(record, kind), (*CASE, *columns))]
        if kind == "forward":
            parts += [
                "On one thread, where making the noise weighs less (`results/bench/one_thread.json`):",
                table(rows_of(one_thread, kind), (*CASE, "fraction_of_base", "fraction_of_adapters")),
            ]
    notes = [line for note in record["notes"] for line in wrap(f"- {note}", 118, subsequent_indent="  ")]
    parts += ["## How to read it", "\n".join(notes), "## What is not so good", LIMITS]
    return "\n\n".join(parts) + "\n"


def rows_of(record: Mapping[str, Any], kind: str) -> list[Mapping[str, Any]]:
    """The rows of one kind."""
    return [row for row in record["rows"] if row["kind"] == kind]


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """A Markdown table of the columns that any row has."""
    rows = list(rows)
    columns = [c for c in columns if any(row.get(c) is not None for row in rows)]
    lines = [" | ".join(c.replace("_", " ") for c in columns), "|".join("---" for _ in columns)]
    lines += [" | ".join(_cell(row.get(c)) for c in columns) for row in rows]
    return "\n".join(f"| {line} |" if "---" not in line else f"|{line}|" for line in lines)


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 100 else f"{value:.2f}"
    return "" if value is None else str(value)


def main() -> None:
    records = [json.loads((ROOT / "results/bench" / f"{name}.json").read_text()) for name in RECORDS]
    PAGE.write_text(page(*records), encoding="utf-8")


if __name__ == "__main__":
    main()
