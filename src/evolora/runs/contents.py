"""What a run folder consists of, where each part lies, and when a place is free for a new one."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from evolora.errors import RunError
from evolora.runs.atomic import cannot_write


class Contents:
    """The paths of one run folder; reading them needs no lock.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_path = path / "config.yaml"
        self.record_path = path / "run.json"
        self.result_path = path / "result.json"
        self.diagnostics_path = path / "diagnostics.json"
        self.journal_path = path / "journal.jsonl"
        self.metrics_path = path / "metrics.parquet"
        self.report_path = path / "report.html"
        self.checkpoints_path = path / "checkpoints"
        self.adapter_path = path / "adapter"
        self.population_path = path / "population"
        self.lock_path = path / "run.lock"

    def record(self) -> dict[str, Any]:
        """Reads ``run.json``; it has a ``status``.

        Raises:
            RunError: this is no run folder, or the file is damaged.
        """
        try:
            record = json.loads(self.record_path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            what = "is no run folder (it has no run.json)" if self.path.exists() else "does not exist"
            raise RunError(what, where=self.path, mend="give the --out folder of a run") from None
        except (OSError, ValueError) as error:
            raise RunError(f"cannot be read ({error})", where=self.record_path) from error
        if not isinstance(record, dict) or not isinstance(record.get("status"), str):
            raise RunError("is not the record of a run (no status)", where=self.record_path)
        return record


def refuse_if_done(contents: Contents) -> None:
    """Raises RunError where a run has its result: it cannot be gone on with."""
    if contents.record()["status"] == "done":
        raise RunError(
            "this run is done",
            where=contents.path,
            mend=f"begin another at its adapter (--start {contents.adapter_path} with another --out), or "
            "replace it with --overwrite",
        )


def refuse_unless_free(contents: Contents, overwrite: bool) -> None:
    """Raises RunError unless a new run may be made there."""
    path = contents.path
    try:
        if path.exists() and not path.is_dir():
            raise RunError("is a file", where=path, mend="choose another --out")
        found = {item.name for item in path.iterdir()} if path.exists() else set()
    except OSError as error:
        raise cannot_write(path, error) from error
    except ValueError as error:  # a NUL byte
        raise RunError(f"is no path ({error})", where=repr(str(path)), mend="choose another --out") from None
    if not found - {contents.lock_path.name}:
        return
    if contents.record_path.name not in found:
        raise RunError(
            "is not empty and is no run folder",
            where=path,
            mend="choose another --out (--resume and --overwrite are for run folders)",
        )
    status = contents.record()["status"]
    if not overwrite:
        raise RunError(
            f"holds a run already ({status})",
            where=path,
            mend="go on with it by --resume, replace it by --overwrite, or choose another --out",
        )


def make_folders(path: Path) -> list[Path]:
    """Makes a folder and its missing parents; returns those it made, outermost first.

    Raises:
        RunError: one cannot be made; those made before it are removed again.
    """
    made: list[Path] = []
    try:
        for folder in [*reversed(path.parents), path]:
            if not folder.is_dir():
                folder.mkdir()
                made.append(folder)
    except OSError as error:
        remove_folders(made)
        raise cannot_write(path, error) from error
    return made


def remove_folders(made: list[Path]) -> None:
    """Removes what ``make_folders`` made, as far as it is empty."""
    with suppress(OSError):
        for folder in reversed(made):
            folder.rmdir()


def remove_old(contents: Contents) -> None:
    """Removes the parts of an earlier run, its record and lock aside; files that are not a run's stay.

    The configuration goes first: a folder without one cannot be resumed by mistake if this is cut short.

    Raises:
        RunError: something cannot be removed.
    """
    try:
        for file in (
            contents.config_path,
            contents.result_path,
            contents.diagnostics_path,
            contents.journal_path,
            contents.metrics_path,
            contents.report_path,
        ):
            file.unlink(missing_ok=True)
        for folder in (contents.checkpoints_path, contents.adapter_path, contents.population_path):
            if folder.exists():
                shutil.rmtree(folder)
    except OSError as error:
        raise RunError(
            f"cannot be removed ({error.strerror})", where=error.filename, mend="check its permissions"
        ) from error
