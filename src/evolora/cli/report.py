"""`evolora report`: the HTML page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evolora.cli.options import Json
from evolora.cli.output import clean_stdout, emit


def command(
    run: Annotated[Path, typer.Argument(help="The run's folder.", show_default=False)],
    json: Json = False,
) -> None:
    """Build the HTML page of a run again.

    Example: [bold]evolora report runs/demo[/bold]
    """
    with clean_stdout():
        from evolora.report.page import write_report

        page = write_report(run)
    emit({"report": page}) if json else print(page)
