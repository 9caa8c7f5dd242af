"""The user's own reward: ``file.py:function`` with TRL's signature, or a Python callable.

    def reward(prompts, completions, **columns) -> list[float]

A function in a file runs in a process of its own, because nothing less can be stopped: a thread that hangs
stays until the interpreter ends, and one that hangs inside C code takes the interpreter with it. The
process is killed together with everything it started when a call exceeds its time, and started again for
the next call. It ends with its parent, however that ends (see ``reward_worker``).

As in TRL, a chat prompt arrives as a list of messages and its completion as a list of one assistant message.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from evolora.errors import RewardError
from evolora.problems import reward_worker
from evolora.problems.reward import Columns, Reward
from evolora.tasks.task import Prompt

TIMEOUT = 60.0
LOAD_TIMEOUT = 300.0


class FileReward(Reward):
    """A function in a Python file, called in a process of its own, one call a member.

    Args:
        file: the Python file.
        function: the name of a function in it.
        timeout: seconds that a call may take.
        load_timeout: seconds that importing the file may take (a judge model loads there).

    Raises:
        RewardError: the file is missing, its import raises, or it has no such function; the exception is
            quoted.
    """

    def __init__(
        self, file: str | Path, function: str, *, timeout: float = TIMEOUT, load_timeout: float = LOAD_TIMEOUT
    ) -> None:
        super().__init__(f"{file}:{function}")
        if not Path(file).is_file():
            raise RewardError("there is no such file", where=file, mend="give the reward as FILE.py:FUNCTION")
        if timeout <= 0:
            raise RewardError(f"a time-out of {timeout} s", where=self.name, mend="give more than 0 seconds")
        self._command = [sys.executable, "-P", reward_worker.__file__, str(Path(file).resolve()), function]
        try:
            self._digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise RewardError(
                f"it cannot be read ({reason})", where=file, mend="check its permissions"
            ) from None
        self._timeout, self._load_timeout = timeout, load_timeout
        self._numbers = itertools.count(1)
        self._worker: _Worker | None = None
        self._start()

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the file as it was when the reward was made, and the name."""
        return f"{self._digest} {self.name}"

    def __call__(
        self, prompts: Sequence[Prompt], completions: Sequence[str], answers: Sequence[str], columns: Columns
    ) -> list[float]:
        """P rewards; all NaN where the call raised, hung, crashed, or returned anything but P numbers."""
        asked, said = conversational(prompts, completions)
        try:
            number = next(self._numbers)
            request = {"id": number, "prompts": asked, "completions": said, "columns": dict(columns)}
            line = json.dumps(request)
        except (TypeError, ValueError) as error:
            raise RewardError(
                f"a column cannot be sent to the function ({error})",
                where=self.name,
                mend="use columns that JSON can hold",
            ) from None
        try:
            answer = (self._worker or self._start()).ask(line, number, self._timeout)
        except RewardError as error:  # it loaded once, and does not load again
            return self._lost("crashed", error.what, len(completions))
        except TimeoutError:
            self.kill()
            return self._lost("timeout", f"it took more than {self._timeout:g} s", len(completions))
        except EOFError:
            self.kill()
            return self._lost("crashed", "its process ended", len(completions))
        except BaseException:  # an interrupt: the reply would be taken for that of the next call
            self.kill()
            raise
        if len(answer["values"]) != len(completions):
            self.kill()
            return self._lost("crashed", "its process sent another number of values", len(completions))
        for kind, count in answer["kinds"].items():
            self.fail(kind, count, answer["error"])
        return [float("nan") if value is None else value for value in answer["values"]]

    def close(self) -> None:
        """Ends the process, after its exit handlers."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def kill(self) -> None:
        """Ends the process and everything it started at once."""
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def _lost(self, kind: str, error: str, count: int) -> list[float]:
        self.fail(kind, count, error)
        return [float("nan")] * count

    def _start(self) -> _Worker:
        worker = _Worker(self._command)
        try:
            answer = worker.receive(self._load_timeout)
        except TimeoutError:
            answer = {"error": f"importing it took more than {self._load_timeout:g} s"}
        except EOFError:
            answer = {"error": "importing it ended the process"}
        except BaseException:
            worker.kill()
            raise
        if "error" in answer:
            worker.kill()
            raise RewardError(answer["error"], where=self.name, mend="correct the reward function")
        self._worker = worker
        return worker


class CallableReward(Reward):
    """A Python callable of TRL's signature, called in this process (so a hang is the caller's own).

    Args:
        function: the callable.
        name: its name in records.
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        super().__init__(name or str(getattr(function, "__name__", type(function).__name__)))
        self._call = reward_worker.bind(function)
        place = function if hasattr(function, "__qualname__") else type(function)
        self._qualified = f"{place.__module__}.{place.__qualname__}"

    @property
    def fingerprint(self) -> str:
        """The qualified name: what a callable does cannot be told."""
        return self._qualified

    def __call__(
        self, prompts: Sequence[Prompt], completions: Sequence[str], answers: Sequence[str], columns: Columns
    ) -> list[float]:
        """P rewards; all NaN where the call raised or returned anything but P numbers."""
        count = len(completions)
        asked, said = conversational(prompts, completions)
        try:
            returned = self._call(asked, said, {name: list(values) for name, values in columns.items()})
            values, kinds, text = reward_worker.convert(returned, count)
        except Exception as error:  # whatever the user's code raises
            self.fail("raised", count, reward_worker.describe(error))
            return [float("nan")] * count
        for kind, failed in kinds.items():
            self.fail(kind, failed, text)
        return [float("nan") if value is None else value for value in values]


def conversational(prompts: Sequence[Prompt], completions: Sequence[str]) -> tuple[list[Any], list[Any]]:
    """Prompts and completions in TRL's form: chats as lists of messages, texts as they are."""
    asked: list[Any] = [p if isinstance(p, str) else [m.as_dict() for m in p] for p in prompts]
    pairs = zip(prompts, completions, strict=True)
    said = [c if isinstance(p, str) else [{"role": "assistant", "content": c}] for p, c in pairs]
    return asked, said


class _Worker:
    """A worker process and the thread that reads its replies."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is the parent's to handle, and the group can be killed whole
            text=True,
            encoding="utf-8",
        )
        self._replies: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=_collect, args=(self._process.stdout, self._replies), daemon=True).start()
        self._finalizer = weakref.finalize(self, _kill, self._process)

    def ask(self, line: str, number: int, timeout: float) -> dict[str, Any]:
        """Sends a request and waits for the reply of its number. Raises TimeoutError or EOFError."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except OSError:
            raise EOFError from None
        return self.receive(timeout, number)

    def receive(self, timeout: float, number: int = 0) -> dict[str, Any]:
        """Waits for the reply to a request (0: that the file loaded), passing over whatever else comes.

        Raises TimeoutError or EOFError.
        """
        end = time.monotonic() + timeout
        while True:
            try:
                line = self._replies.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise TimeoutError from None
            if line is None:
                raise EOFError
            with contextlib.suppress(ValueError, RecursionError):
                reply = json.loads(line)
                if isinstance(reply, dict) and reply.get("id") == number:
                    return reply

    def close(self) -> None:
        """Closes the input, which ends the process; kills it if that takes too long."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(reward_worker.GRACE + 1)
        self.kill()

    def kill(self) -> None:
        """Kills the process group and reaps the process."""
        self._finalizer()


def _collect(stream: Any, replies: queue.SimpleQueue[str | None]) -> None:
    with stream:
        for line in stream:
            replies.put(line)
    replies.put(None)


def _kill(process: subprocess.Popen[str]) -> None:
    if process.returncode is None:  # not reaped yet, so its id cannot have become another's
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        process.wait()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
