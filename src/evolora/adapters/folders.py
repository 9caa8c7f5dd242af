"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from evolora.errors import AdapterError
from evolora.runs.atomic import sync_folder


@contextmanager
def new_folder(target: Path, *, overwrite: bool, marker: str, known: Collection[str]) -> Iterator[Path]:
    """Yields an empty folder beside ``target``; on a clean exit it is renamed into place.

    The files put into it should be synced (``runs.atomic.write_synced``).

    Args:
        target: the folder to make; parents are made too.
        overwrite: whether a folder that stands there may be replaced.
        marker: a file that such a folder must hold.
        known: all names that it may hold; a folder with anything else is never removed.

    Raises:
        AdapterError: something stands at ``target`` that may not be replaced, or nothing can be
            written there.
    """
    _check_target(target, overwrite, marker, known)
    beside = _beside(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside.mkdir()
        yield beside
        sync_folder(beside)
        _swap(beside, target)
    except OSError as error:
        raise AdapterError(
            f"cannot be written ({error.strerror or error})", where=target, mend="choose a folder that can be"
        ) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _beside(target: Path) -> Path:
    return target.parent / f".{target.name}.{uuid.uuid4().hex}"


def _check_target(target: Path, overwrite: bool, marker: str, known: Collection[str]) -> None:
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise AdapterError(
            "already exists", where=target, mend="choose another folder, or ask for overwriting"
        )
    if target.is_symlink() or not target.is_dir():
        raise AdapterError("is not a folder, and is not replaced", where=target, mend="choose another path")
    entries = {entry.name for entry in target.iterdir()}
    foreign = sorted(entries - set(known))
    if foreign or (entries and marker not in entries):
        what = f"holds {foreign[0]}" if foreign else f"holds no {marker}"
        raise AdapterError(f"{what}, so it is not replaced", where=target, mend="choose another path")


def _swap(beside: Path, target: Path) -> None:
    """Renames the new folder into place. The old one steps aside first, and comes back if that fails."""
    aside = None
    if target.exists():
        aside = _beside(target)
        os.rename(target, aside)
    try:
        os.rename(beside, target)
    except OSError:
        if aside is not None:
            os.rename(aside, target)
        raise
    sync_folder(target.parent)
    if aside is not None:
        shutil.rmtree(aside)
