"""One family of errors; every message says what is wrong, where, and how to mend it, in one line."""

from __future__ import annotations


class EvoloraError(Exception):
    """Something went wrong that the user should read in one line.

    Args:
        what: what is wrong.
        where: the file, line, module or option concerned.
        mend: what to do about it.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: object = None, mend: str | None = None) -> None:
        self.what, self.where, self.mend = what, where, mend
        text = f"{where}: {what}" if where is not None else what
        super().__init__(" ".join((f"{text}; {mend}" if mend else text).split()))


class InputError(EvoloraError):
    """What the user gave is wrong; the command exits with code 2."""

    exit_code = 2


class AdapterError(InputError):
    """An adapter folder cannot be read exactly, or does not fit the base."""


class ModelError(InputError):
    """A base model cannot be found, loaded or adapted."""


class TaskError(InputError):
    """A task or a data file is wrong."""


class RewardError(InputError):
    """A reward function cannot be loaded, or returns what it must not."""


class ConfigError(InputError):
    """An option or a configuration file is wrong."""


class RunError(InputError):
    """A run folder cannot be created, resumed or read."""


class DivergedError(RunError):
    """A search whose numbers are no longer finite."""


class ProtocolError(EvoloraError):
    """A method was called out of order or with arrays of the wrong shape."""
