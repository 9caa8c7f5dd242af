"""`evolora study`: experiments with a verdict; list them, run one, show one that was run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from evolora.cli.options import Json, Quiet
from evolora.cli.output import clean_stdout, console, emit, table
from evolora.cli.progress import make_progress
from evolora.errors import ConfigError

_ACTIONS = ("list", "run", "show")


def command(
    action: Annotated[str, typer.Argument(help="list, run or show.", show_default=False)],
    name: Annotated[str | None, typer.Argument(help="The study's name.", show_default=False)] = None,
    preset: Annotated[str, typer.Option("--preset", help="smoke, small or full.")] = "smoke",
    data: Annotated[
        list[str] | None, typer.Option("--data", help="A file that the study reads: NAME=PATH.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes that run cells.")] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", help="Its folder; runs/studies/NAME-PRESET if not given.")
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List, run or show experiments: claims first, paired seeds, equal budgets, a verdict.

    Cells that are done are kept: run it again to go on.

    Example: [bold]evolora study run replicator-friedman --preset small --workers 2[/bold]
    """
    if action not in _ACTIONS:
        raise ConfigError(f"{action!r} is nothing to do", where="study", mend=f"choose {', '.join(_ACTIONS)}")
    if action == "list":
        _list(json=json)
        return
    if name is None:
        raise ConfigError("no study is named", where=f"study {action}", mend="see `evolora study list`")
    with clean_stdout():
        from evolora.report import read_study, write_study_report
        from evolora.studies import load_study, run_study

        study = load_study(name)
        folder = out or Path("runs/studies") / f"{name}-{preset}"
        if action == "run":
            progress = make_progress(quiet=quiet)
            record: Mapping[str, Any] = run_study(
                study, preset, folder, data=_files(data or []), workers=workers, progress=progress
            )
        else:
            record = read_study(folder).record
        page = write_study_report(folder)
    emit(summary(record, folder, page)) if json else tell(record, folder, page)


def _files(given: Sequence[str]) -> dict[str, Path]:
    pairs = [pair.partition("=") for pair in given]
    for name, _, path in pairs:
        if not (name and path):
            raise ConfigError(f"{name!r} is no NAME=PATH", where="--data", mend="write corpus=text.txt")
    return {name: Path(path) for name, _, path in pairs}


def summary(record: Mapping[str, Any], folder: Path, page: Path) -> dict[str, Any]:
    """What ``--json`` prints: the study, each claim with what came of it, the record, the page."""
    names = ("claim", "holds", "effect", "ci", "p", "p_holm", "n", "words")
    claims = [{name: finding.get(name) for name in names} for finding in record["findings"]]
    return {
        "study": record["study"],
        "preset": record["preset"],
        "claims": claims,
        "record": str(folder / "record.json"),
        "report": str(page),
    }


def tell(record: Mapping[str, Any], folder: Path, page: Path) -> None:
    """Prints the verdict: each claim as it was stated, and what came of it."""
    say = console().print
    claims = {claim["name"]: claim for claim in record["plan"]["claims"]}
    say(f"\n{record['study']}, {record['preset']}: {len(record['plan']['seeds'])} paired seeds", style="bold")
    for finding in record["findings"]:
        claim = claims[finding["claim"]]
        say(f"\n{'holds' if finding['holds'] else 'does not hold'}: {claim['says']}", style="bold")
        low, high = map(_short, finding["ci"])
        effect, p, holm = (_short(finding.get(key)) for key in ("effect", "p", "p_holm"))
        say(f"  effect {effect} [{low}, {high}], p {p} (Holm's {holm}), n {finding['n']}")
        say(f"  {finding['words']}")
        if claim["source"]:
            say(f"  the source: {claim['source']}")
    say(f"\nplan   {record['plan']['digest']}, laid down before the first cell")
    say(f"record {folder / 'record.json'}")
    say(f"report {page}\n")


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _list(*, json: bool) -> None:
    with clean_stdout():
        from evolora.studies import studies

        rows: list[dict[str, Any]] = [
            {
                "name": name,
                "summary": study.summary,
                "source": study.source,
                "presets": {key: len(preset.seeds) for key, preset in study.presets.items()},
                "claims": [claim.says for claim in study.claims],
            }
            for name, study in studies().items()
        ]
    if json:
        emit({"studies": rows})
        return
    cells = [
        (row["name"], row["summary"], ", ".join(f"{k} {n}" for k, n in row["presets"].items()), row["source"])
        for row in rows
    ]
    table("Studies: evolora study run NAME", ("name", "what", "paired seeds", "source"), cells)
