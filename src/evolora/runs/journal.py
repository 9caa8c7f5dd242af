"""The journal of a run: one JSON line a step, on the disk before the next step starts."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evolora.errors import RunError
from evolora.runs.atomic import cannot_write, write_atomically
from evolora.runs.plain import plain


class Journal:
    """Appends lines to ``path`` and reads them back, whatever moment the writer was killed at.

    A number that is NaN or infinite is written as ``null``: every line is strict JSON, and a reader sees "no
    value". Floats are written with ``repr`` and read back to the same bits.

    Args:
        path: the file, ``journal.jsonl``; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def append(self, entry: Mapping[str, Any]) -> None:
        """Adds one line and waits until it is on the disk.

        Raises:
            ProtocolError: a value that JSON cannot hold.
            RunError: the file cannot be written; it then ends where it ended before.
        """
        line = json.dumps(plain(entry, where="journal"), allow_nan=False, ensure_ascii=False) + "\n"
        try:
            handle = self._opened()
            size = os.fstat(handle).st_size
            try:
                rest = memoryview(line.encode("utf-8", "backslashreplace"))
                while rest:
                    rest = rest[os.write(handle, rest) :]
                os.fsync(handle)
            except OSError:
                os.ftruncate(handle, size)
                raise
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def read(self) -> list[dict[str, Any]]:
        """All entries, oldest first; a torn last line is left out, a missing file is empty.

        Raises:
            RunError: a line before the last is no JSON object.
        """
        return [entry for _, entry in self._lines()]

    def truncate_after(self, step: int) -> int:
        """Drops everything from the first line of a step later than ``step`` on, and a torn last line.

        A run that resumes from its checkpoint of ``step`` calls this first: its journal then equals the
        journal of a run that was never stopped. Atomic; kept lines keep their bytes.

        Returns:
            How many entries remain.
        """
        self.close()
        kept: list[bytes] = []
        for line, entry in self._lines():
            if entry.get("step", step) > step:
                break
            kept.append(line)
        self._replace(kept)
        return len(kept)

    def close(self) -> None:
        """Closes the file; a later ``append`` opens it again."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _opened(self) -> int:
        if self._handle is None:
            self._replace([line for line, _ in self._lines()])
            self._handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        return self._handle

    def _replace(self, lines: list[bytes]) -> None:
        data = b"".join(line + b"\n" for line in lines)
        if data != self._data():
            write_atomically(self.path, data)

    def _data(self) -> bytes:
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise RunError(f"cannot be read ({error.strerror})", where=self.path) from error

    def _lines(self) -> list[tuple[bytes, dict[str, Any]]]:
        found: list[tuple[bytes, dict[str, Any]]] = []
        lines = [line for line in self._data().split(b"\n") if line.strip()]
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                if not isinstance(entry, dict):
                    raise ValueError("not an object")
            except ValueError:
                if number == len(lines):  # no proper start of an object is itself an object, so it was torn
                    break
                raise RunError(
                    "is no JSON object",
                    where=f"{self.path}, line {number}",
                    mend="remove the line, or start anew",
                ) from None
            found.append((line, entry))
        return found
