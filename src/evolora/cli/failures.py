"""From an exception to an exit code and one line on stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Sequence

import typer

from evolora.cli.output import emit
from evolora.errors import EvoloraError

USAGE = 2
FAILED = 1
INTERRUPTED = 130
_USAGE_ERROR = typer.BadParameter.__mro__[1]  # click's UsageError, which typer carries but does not name


def fail(error: BaseException, arguments: Sequence[str]) -> int:
    """Says in one line what went wrong; with ``--json`` also as ``{"error": {...}}`` on stdout.

    Args:
        error: what was raised.
        arguments: the command line, for ``--json`` (the error may have come before it was parsed).

    Returns:
        The exit code: 1 failed, 2 the input is wrong, 130 interrupted.
    """
    if debug():
        traceback.print_exception(error)
    kind, line, code = _describe(error, arguments)
    print(line, file=sys.stderr)
    if "--json" in arguments:
        detail = {"kind": kind, "message": line.removeprefix("error: "), "exit_code": code}
        if isinstance(error, EvoloraError):
            detail |= {"what": error.what, "where": error.where and str(error.where), "mend": error.mend}
        with contextlib.suppress(OSError):  # a full or closed stdout must not hide the exit code
            emit({"error": detail})
    return code


def debug() -> bool:
    """Whether EVOLORA_DEBUG asks for tracebacks and the libraries' own messages."""
    return os.environ.get("EVOLORA_DEBUG", "") not in ("", "0")


def _describe(error: BaseException, arguments: Sequence[str]) -> tuple[str, str, int]:
    name = type(error).__name__
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return "Interrupted", "interrupted", INTERRUPTED
    if isinstance(error, EvoloraError):
        return name, f"error: {error}", error.exit_code
    if isinstance(error, _USAGE_ERROR):
        message = " ".join(error.format_message().split()).rstrip(".")  # type: ignore[attr-defined]
        verb = getattr(getattr(error, "ctx", None), "command_path", "evolora")
        return "UsageError", f"error: {message}; see `{verb} --help`", USAGE
    if isinstance(error, MemoryError):
        return name, "error: not enough memory; lower the population, the rank, batch or max_tokens", FAILED
    text = " ".join(str(error).split()) or "no message"
    hint = "" if debug() else "; EVOLORA_DEBUG=1 shows the traceback"
    return name, f"error: unexpected {name}: {text}{hint}", FAILED
