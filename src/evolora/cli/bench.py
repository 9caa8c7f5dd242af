"""`evolora bench`: the engine against the plain base and against PEFT, as ratios within one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from evolora.cli.options import Device, Json, Model, Quiet, Threads, Trust
from evolora.cli.output import clean_stdout, console, emit, table
from evolora.cli.progress import make_progress
from evolora.cli.quiet import quiet_libraries

_OUT_OF_THE_TABLE = ("kind", "reasons", "fraction_range", "cost_range")
_SHORT = {"rows_per_member": "rows", "fraction_of_base": "of base", "extrapolated_from": "from"}


def command(
    model: Model = "smollm2-135m",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rows and repeats.")] = False,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="float32, bfloat16, float16; several with commas.", show_default=False),
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    trust_remote_code: Trust = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the engine's throughput against the plain base and against PEFT.

    Example: [bold]evolora bench --quick[/bold]

    All numbers are ratios of medians taken in turn within this run: on a shared machine trust them, not
    seconds. In float32 and bfloat16 by default, in float32 with --quick.
    """
    quiet_libraries()
    progress = make_progress(quiet=quiet)
    with clean_stdout():
        import torch

        from evolora.bench import plan, throughput
        from evolora.engine import load_base

        names = plan.dtypes(dtype, quick=quick)
        if threads is not None:
            torch.set_num_threads(threads)
        measured = []
        try:
            for name in names:
                progress.note(f"loading {model} in {name}")
                base = load_base(model, dtype=name, device=device, trust_remote_code=trust_remote_code)
                measured.append(throughput.run(base, quick, progress))
        finally:
            progress.finish()
        found = throughput.join(measured)
    emit(found) if json else _show(found)


def _show(measured: Mapping[str, Any]) -> None:
    rows = measured["rows"]
    for kind in dict.fromkeys(row["kind"] for row in rows):
        _show_kind(kind, [row for row in rows if row["kind"] == kind])
    say = console().print
    for row in rows:
        for name, reason in (row.get("reasons") or {}).items():
            say(f"{row['kind']}, {row['members']} members, {row['dtype']}: {name}: {reason}")
    for note in measured.get("notes", ()):
        say(note)
    say(", ".join(f"{name} {value}" for name, value in measured["machine"].items() if value is not None))


def _show_kind(kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = [c for c in dict.fromkeys(name for row in rows for name in row) if c not in _OUT_OF_THE_TABLE]
    titles = [_SHORT.get(column, column).replace("_", " ") for column in columns]
    numbers = [
        t
        for t, c in zip(titles, columns, strict=True)
        if any(isinstance(r.get(c), int | float) for r in rows)
    ]
    table(
        kind.capitalize(),
        titles,
        [[_cell(row.get(column)) for column in columns] for row in rows],
        right=numbers,
    )


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)
