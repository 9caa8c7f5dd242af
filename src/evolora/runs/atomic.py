"""Files that appear whole or not at all: written beside, fsynced, renamed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from evolora.errors import RunError


def sync_folder(path: Path) -> None:
    """Makes renames inside ``path`` survive a power failure (a no-op where folders cannot be opened)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_synced(path: Path, data: bytes) -> None:
    """Writes a file and waits until it is on the disk; not atomic by itself."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_atomically(path: Path, data: bytes | str) -> Path:
    r"""Replaces the file at ``path`` by ``data``; a reader sees the old file or the new one, never a part.

    Text is written as UTF-8; a lone surrogate becomes its ``\udXXX`` escape, which JSON reads back unchanged.

    Raises:
        RunError: it cannot be written; the old file, if any, is untouched and nothing is left beside it.
    """
    beside = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        write_synced(beside, data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)
        os.replace(beside, path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise cannot_write(path, error) from error
    return path


def cannot_write(path: Path, error: OSError) -> RunError:
    """The error that says why ``path`` cannot be written."""
    return RunError(
        f"cannot be written ({error.strerror or error})",
        where=path,
        mend="check its permissions and the free space",
    )
