"""`evolora report`: the HTML page of a run or a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evolora.cli.options import Json
from evolora.cli.output import clean_stdout, emit


def command(
    folder: Annotated[
        Path,
        typer.Argument(help="Of a run or a study; or a study's record, a JSON file.", show_default=False),
    ],
    json: Json = False,
) -> None:
    """Build the HTML page of a run or a study again.

    Example: [bold]evolora report runs/demo[/bold]
    """
    with clean_stdout():
        from evolora.report import is_study, write_report, write_study_report

        page = write_study_report(folder) if is_study(folder) else write_report(folder)
    emit({"report": page}) if json else print(page)
