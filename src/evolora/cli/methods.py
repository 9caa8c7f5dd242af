"""`evolora methods`: the search methods, from their registry."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evolora.cli.options import Json
from evolora.cli.output import clean_stdout, emit, table

if TYPE_CHECKING:
    from evolora.search.method import AnyMethod


def command(json: Json = False) -> None:
    """List the search methods with their sources and options.

    Example: [bold]evolora methods --json[/bold]
    """
    with clean_stdout():
        from evolora.search.registry import methods

        rows = [describe(name, method) for name, method in sorted(methods().items())]
    if json:
        emit({"methods": rows})
        return
    table(
        "Methods: evolora adapt --method NAME --set OPTION=VALUE",
        ("name", "what", "options", "source"),
        [(row["name"], row["summary"], _options(row), row["source"]) for row in rows],
    )
    for row in rows:
        cells = [(o["name"], o["default"], o["type"], o["range"], o["description"]) for o in row["options"]]
        table(f"Options of {row['name']}", ("option", "default", "type", "range", "what"), cells)


def describe(name: str, method: type[AnyMethod]) -> dict[str, Any]:
    """One method in plain values: its name, one line, source, and options as rows."""
    options = [dataclasses.asdict(option) for option in method.table()]
    return {"name": name, "summary": method.summary, "source": method.source, "options": options}


def _options(row: Mapping[str, Any]) -> str:
    return ", ".join(option["name"] for option in row["options"])
