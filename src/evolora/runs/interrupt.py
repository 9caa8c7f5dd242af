"""Ctrl-C and SIGTERM as a wish: the first ends the run after this step, the second at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupt:
    """While the block runs, turns the first SIGINT or SIGTERM into a flag.

        with Interrupt() as interrupt:
            while not interrupt.requested:
                ...  # one step, one checkpoint

    The second signal raises KeyboardInterrupt. The handlers from before come back at the end. Signals that
    the process ignores (``nohup``, a shell's background job) stay ignored. Outside the main thread, where
    Python allows no handlers, nothing changes and nothing is ever requested.

    Attributes:
        requested: whether a signal has come.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # None: a handler that was not installed from Python, which could not be put back
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
