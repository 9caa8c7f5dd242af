"""Reading JSON lines: every line an object, every error with its file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evolora.errors import TaskError
from evolora.tasks.task import SPLITS, Split

ALIASES: dict[str, Split] = {
    **{split: split for split in SPLITS},
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "dev": "validation",
    "testing": "test",
}


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file in order, each with its place (``file:line``); blank lines are passed over.

    Raises:
        TaskError: the file is missing, a folder, unreadable, empty or not UTF-8; a line is not an object, or
            holds half of a surrogate pair.
    """
    rows = 0
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", None) or str(error) or "nested too deeply"
            column = f" at column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
            mend = "write one JSON object a line"
            if line.lstrip().startswith("[") and number == 1:
                mend += ", not one list over the whole file"
            raise TaskError(f"not JSON ({reason}{column})", where=where, mend=mend) from None
        if not isinstance(row, dict):
            raise TaskError(
                f"the line is {_kind(row)}, not an object",
                where=where,
                mend='write lines like {"prompt": ..., "answer": ...}',
            )
        if "\\u" in line:
            _refuse_halves(row, where)
        rows += 1
        yield where, row
    if not rows:
        raise TaskError("the file is empty", where=path, mend="write one JSON object a line")


def text_of(row: dict[str, Any], key: str, where: str) -> str:
    """The text in a column.

    Raises:
        TaskError: the column is missing or is not text.
    """
    if key not in row:
        raise TaskError(
            f'the key "{key}" is missing (there are {_names(row)})', where=where, mend=f'add "{key}"'
        )
    value = row[key]
    if not isinstance(value, str):
        raise TaskError(f'"{key}" is {_kind(value)}, not text', where=where, mend="put it in quotation marks")
    return value


def split_in(row: dict[str, Any], where: str) -> Split | None:
    """The split that a row names; None if it names none.

    Raises:
        TaskError: the name is none of the known ones.
    """
    name = row.get("split")
    if name is None:
        return None
    if not isinstance(name, str) or name not in ALIASES:
        raise TaskError(
            f"unknown split {json.dumps(name)}", where=where, mend=f"use one of {', '.join(SPLITS)}"
        )
    return ALIASES[name]


def read_text(path: Path) -> str:
    """The text of a file, a byte order mark removed.

    Raises:
        TaskError: it is missing, a folder, unreadable, or not UTF-8.
    """
    if path.is_dir():
        raise TaskError("this is a folder", where=path, mend="give a file")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise TaskError("there is no such file", where=path, mend="check the path") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TaskError(f"it cannot be read ({reason})", where=path, mend="check its permissions") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TaskError("not UTF-8 text", where=f"{path}:{line}", mend="save the file as UTF-8") from None


def _refuse_halves(row: dict[str, Any], where: str) -> None:
    """Half a surrogate pair can be escaped in JSON, and neither be tokenised nor written."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise TaskError(
            f"{half} is half of a surrogate pair, not a character",
            where=where,
            mend="write both halves, or the character itself",
        ) from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _kind(value: object) -> str:
    kinds = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
        str: "a text",
    }
    return "null" if value is None else kinds.get(type(value), type(value).__name__)


def _names(row: dict[str, Any]) -> str:
    return ", ".join(f'"{name}"' for name in row) or "none"
