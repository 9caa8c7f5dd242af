"""The process in which the user's reward function runs; started by ``user_reward``, standard library only.

Requests and replies are JSON lines on the standard input and on a copy of the standard output; what the
function prints goes to the standard error. The process leads its own group, and ends with everything that
the function started as soon as its input closes, which it does however the parent ends.
"""

from __future__ import annotations

import atexit
import importlib.util
import inspect
import itertools
import json
import math
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AnySet
from typing import Any, TextIO

GRACE = 5.0  # seconds that exit handlers of the user's module may take
LARGEST = 3.4028234663852886e38  # of float32, in which rewards are kept


def convert(returned: Any, count: int) -> tuple[list[float | None], dict[str, int], str | None]:
    """Checks what a reward function returned.

    Returns:
        ``count`` numbers with None where there is none, how many by kind, and the last failure in words.
    """
    if returned is None:
        return [None] * count, {"none": count}, "it returned None"
    try:
        if isinstance(returned, Mapping | AnySet | str | bytes | bytearray):  # no order, or no numbers
            raise TypeError
        entries = iter(returned)
    except TypeError:
        kind = type(returned).__name__
        return [None] * count, {"not_a_list": count}, f"it returned {kind}, not a list of numbers"
    items = list(itertools.islice(entries, count + 1))  # iterators may be endless
    if len(items) != count:
        found = f"{len(items)}" if len(items) < count else f"more than {count}"
        return [None] * count, {"length": count}, f"it returned {found} rewards for {count} completions"
    values: list[float | None] = []
    kinds: Counter[str] = Counter()
    error = None
    for item in items:
        value, wrong = _number(item)
        values.append(value)
        if wrong:
            kinds[wrong] += 1
            error = f"it returned {item!r:.40} as a reward"
    return values, dict(kinds), error


def bind(function: Callable[..., Any]) -> Callable[[list[Any], list[Any], dict[str, list[Any]]], Any]:
    """The function, called with TRL's keywords; without ``**kwargs`` it gets only columns that it names."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return lambda prompts, completions, columns: function(
            prompts=prompts, completions=completions, **columns
        )
    everything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())

    def call(prompts: list[Any], completions: list[Any], columns: dict[str, list[Any]]) -> Any:
        given = {"prompts": prompts, "completions": completions, **columns}
        return function(**{name: value for name, value in given.items() if everything or name in parameters})

    return call


def describe(error: BaseException, file: str | None = None) -> str:
    """An exception in one line; with the line of ``file`` where it came from, if it passed through there."""
    try:
        said = str(error)
    except Exception:  # anything may stand in the user's exception
        said = ""
    text = " ".join(f"{type(error).__name__}: {said}".split()).rstrip(": ")[:300]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{text} (line {lines[-1]})" if lines else text


def _number(item: Any) -> tuple[float | None, str | None]:
    if item is None:
        return None, "none"
    try:
        value = float(item) if not isinstance(item, str | bytes) else None
    except OverflowError:
        return None, "infinite"
    except Exception:  # anything may stand in the user's list
        value = None
    if value is None:
        return None, "not_a_number"
    if math.isnan(value):
        return None, "nan"
    return (None, "infinite") if abs(value) > LARGEST else (value, None)


def _end() -> None:
    """Ends the whole group: this process and whatever the function has started."""
    sys.stderr.flush()
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _read(stream: TextIO, requests: queue.SimpleQueue[str | None]) -> None:
    for line in stream:
        requests.put(line)
    requests.put(None)
    time.sleep(GRACE)
    _end()


def _load(file: str, name: str) -> Callable[..., Any]:
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    spec = importlib.util.spec_from_file_location(os.path.splitext(os.path.basename(file))[0], file)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        known = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == spec.name]
        raise LookupError(f"it has no function {name}; there are {', '.join(known) or 'none'}")
    return bind(function)


def main(file: str, name: str) -> None:
    """Loads the function, says so, then answers requests until the input closes."""
    stream, replies = os.fdopen(os.dup(0), encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(
        os.open(os.devnull, os.O_RDONLY), 0
    )  # or the function, or what it starts, could read the requests
    os.dup2(2, 1)
    requests: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    atexit.register(_end)  # registered first, so run last: after the exit handlers of the user's module
    threading.Thread(target=_read, args=(stream, requests), daemon=True).start()

    own = os.getpid()

    def reply(number: int = 0, **fields: Any) -> None:
        if os.getpid() != own:  # a copy that the function forked off, and that came back from it
            os._exit(0)
        replies.write(json.dumps({"id": number, **fields}) + "\n")
        replies.flush()

    try:
        call = _load(file, name)
    except LookupError as error:
        return reply(error=str(error))
    except BaseException as error:
        return reply(error=f"importing it raised {describe(error, file)}")
    reply(ready=True)
    while (line := requests.get()) is not None:
        request = json.loads(line)
        number, count = request.pop("id"), len(request["completions"])
        try:
            values, kinds, error_text = convert(call(**request), count)
        except BaseException as error:  # SystemExit too: a function must not end the worker unseen
            values, kinds, error_text = [None] * count, {"raised": count}, describe(error, file)
        reply(number, values=values, kinds=kinds, error=error_text)
    return None


if __name__ == "__main__":
    main(*sys.argv[1:3])
