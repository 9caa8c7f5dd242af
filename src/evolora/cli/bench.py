"""`evolora bench`: the engine against the plain base and against PEFT, as ratios within one run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from evolora.cli.options import Device, Dtype, Json, Model, Quiet, Threads, Trust
from evolora.cli.output import clean_stdout, console, emit, table
from evolora.cli.progress import make_progress
from evolora.cli.quiet import quiet_libraries


def command(
    model: Model = "smollm2-135m",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rows and repeats.")] = False,
    dtype: Dtype = "float32",
    device: Device = "auto",
    threads: Threads = None,
    trust_remote_code: Trust = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the engine's throughput against the plain base and against PEFT.

    Example: [bold]evolora bench --quick[/bold]

    All numbers are ratios of medians taken in turn within this run: on a shared machine trust them, not
    seconds.
    """
    quiet_libraries()
    progress = make_progress(quiet=quiet)
    with clean_stdout():
        import torch

        from evolora.bench.throughput import run
        from evolora.engine import load_base

        if threads is not None:
            torch.set_num_threads(threads)
        progress.note(f"loading {model}")
        base = load_base(model, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
        try:
            measured = run(base, quick, progress)
        finally:
            progress.finish()
    emit(measured) if json else _show(measured)


def _show(measured: Mapping[str, Any]) -> None:
    rows = measured["rows"]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    titles = [column.replace("_", " ") for column in columns]
    table(
        "Throughput",
        titles,
        cells,
        right=[t for t, c in zip(titles, columns, strict=True) if _numeric(rows, c)],
    )
    say = console().print
    say(
        "fraction of base: 1 is the speed of the plain base on the same rows. vs ...: how many times as fast."
    )
    for note in measured.get("notes", ()):
        say(note)
    say(", ".join(f"{name} {value}" for name, value in measured["machine"].items()))


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def _numeric(rows: list[Mapping[str, Any]], column: str) -> bool:
    return any(isinstance(row.get(column), int | float) for row in rows)
