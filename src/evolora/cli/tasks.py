"""`evolora tasks`: the built-in tasks, from their registry."""

from __future__ import annotations

from evolora.cli.options import Json
from evolora.cli.output import clean_stdout, emit, table


def command(json: Json = False) -> None:
    """List the built-in tasks; a JSONL file of yours works in their place.

    Example: [bold]evolora tasks[/bold]
    """
    with clean_stdout():
        from evolora.tasks import task_names

        rows = [{"name": n, "description": d, "source": s} for n, d, s in task_names()]
    if json:
        emit({"tasks": rows})
        return
    table(
        "Tasks: evolora adapt --task NAME, or --task FILE.jsonl with `prompt` and `answer`",
        ("name", "what", "source"),
        [(row["name"], row["description"], row["source"]) for row in rows],
    )
