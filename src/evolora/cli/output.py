"""What a verb prints on stdout: one JSON object, or text and tables."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH_OF_A_FILE = 140


def emit(value: Mapping[str, Any]) -> None:
    """Prints one JSON object; numbers that JSON does not have (nan, inf) become null."""
    print(json.dumps(plain(value), ensure_ascii=True, allow_nan=False), file=sys.stdout, flush=True)


def plain(value: Any) -> Any:
    """The value in JSON's own types: arrays become lists, paths become text, nan and inf become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int | bool):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def console(stream: IO[str] | None = None) -> Console:
    """A rich console on stdout (or the given stream) that prints text as it is: no markup, no emoji."""
    from rich.console import Console

    file = stream or sys.stdout
    width = None if file.isatty() else _WIDTH_OF_A_FILE
    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()
) -> None:
    """Prints a table.

    Args:
        title: stands above it.
        columns: the headings.
        rows: one sequence of cells each.
        right: the headings of columns to align at the right, such as numbers.
    """
    from rich import box
    from rich.table import Table

    grid = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in columns:
        grid.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*("" if cell is None else str(cell) for cell in row))
    console().print(grid)


def count(number: int, noun: str) -> str:
    """The number with its noun: ``1 step``, ``2 steps``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def percent(value: float | None, share: bool = True) -> str:
    """A share as a percentage with one digit, another mean reward as it is; a dash where there is none."""
    if value is None or math.isnan(value):
        return "-"
    return f"{100 * value:.1f} %" if share else f"{value:.3f}"


def interval(ci: Sequence[float | None], share: bool = True) -> str:
    """A 95 % interval, as ``[12.0, 34.0]`` in percent for shares; a dash where there is none."""
    low, high = ci
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return "-"
    return f"[{100 * low:.1f}, {100 * high:.1f}]" if share else f"[{low:.3f}, {high:.3f}]"


@contextlib.contextmanager
def clean_stdout() -> Iterator[None]:
    """Sends to stderr what libraries and the user's reward function print while the work runs."""
    with contextlib.redirect_stdout(sys.stderr):
        yield
