"""Plain data: what JSON and YAML can hold, made from the scalars, paths and small arrays of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from evolora.errors import ProtocolError


def plain(value: Any, *, nonfinite: bool = False, where: str = "value") -> Any:
    """A copy of ``value`` made of dict, list, str, int, float, bool and None alone.

    Tuples become lists, paths become strings, NumPy and torch scalars or arrays become numbers or lists.

    Args:
        value: the data.
        nonfinite: keep NaN and the infinities; by default they become None: strict JSON has no word for them.
        where: the name of the value, for the error.

    Raises:
        ProtocolError: a key that is not a string, or an object that is none of the above.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if nonfinite or math.isfinite(value) else None
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ProtocolError(f"the key {key!r} is not a string", where=where)
        return {key: plain(item, nonfinite=nonfinite, where=f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, nonfinite=nonfinite, where=f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, PathLike):
        return str(fspath(value))
    if hasattr(value, "tolist"):
        return plain(value.tolist(), nonfinite=nonfinite, where=where)
    raise ProtocolError(
        f"a {type(value).__name__} cannot be written",
        where=where,
        mend="turn it into numbers, strings, lists or dicts",
    )
