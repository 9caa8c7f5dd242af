"""`evolora methods`: the search methods, from their registry."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evolora.cli.options import Json
from evolora.cli.output import clean_stdout, emit, table

if TYPE_CHECKING:
    from evolora.search import AnyMethod


def command(
    names: Annotated[list[str] | None, typer.Argument(help="Of these alone.", show_default=False)] = None,
    json: Json = False,
) -> None:
    """List the search methods with their sources and options.

    Example: [bold]evolora methods eggroll[/bold]
    """
    with clean_stdout():
        from evolora.search.options import unknown
        from evolora.search.registry import methods

        known = methods()
        for name in names or ():
            if name not in known:
                raise unknown("method", name, known)
        rows = [describe(name, known[name]) for name in names or sorted(known)]
    if json:
        emit({"methods": rows})
        return
    table(
        "Methods: evolora adapt --method NAME --set OPTION=VALUE",
        ("name", "what", "options", "source"),
        [(row["name"], row["summary"], _options(row), row["source"]) for row in rows],
    )
    columns = ("name", "default", "type", "range", "description")
    for row in rows:
        cells = [[str(option[column]) for column in columns] for option in row["options"]]
        table(f"Options of {row['name']}", columns, cells)


def describe(name: str, method: type[AnyMethod]) -> dict[str, Any]:
    """One method in plain values: its name, one line, source, and options as rows."""
    options = [dataclasses.asdict(option) for option in method.table()]
    return {"name": name, "summary": method.summary, "source": method.source, "options": options}


def _options(row: Mapping[str, Any]) -> str:
    return ", ".join(option["name"] for option in row["options"])
