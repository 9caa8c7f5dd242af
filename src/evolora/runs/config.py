"""The resolved configuration of a run: ``config.yaml``, and whether two of them give the same result."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from evolora.errors import RunError
from evolora.runs.plain import plain

_ABSENT = object()


def config_text(config: Mapping[str, Any]) -> str:
    """The YAML text of a configuration, keys in the given order.

    Raises:
        ProtocolError: a value that YAML cannot hold.
    """
    return yaml.safe_dump(plain(config, nonfinite=True, where="config"), sort_keys=False, allow_unicode=True)


def read_config(path: Path) -> dict[str, Any]:
    """Reads a ``config.yaml``.

    Raises:
        RunError: it is missing or damaged.
    """
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RunError(
            f"cannot be read ({' '.join(str(error).split())[:120]})",
            where=path,
            mend="start anew with --overwrite",
        ) from error
    if not isinstance(config, dict):
        raise RunError("holds no configuration", where=path, mend="start anew with --overwrite")
    return config


def differences(
    old: Mapping[str, Any], new: Mapping[str, Any], may_change: Collection[str] = ()
) -> list[str]:
    """The keys in which two configurations differ, each with both values: ``sigma was 0.02, is 0.05``.

    Args:
        old: the configuration that a run was started with.
        new: the configuration that is asked for now.
        may_change: dotted keys that do not count; ``budget`` covers ``budget.steps``.
    """
    before, now = _flat(plain(old, nonfinite=True)), _flat(plain(new, nonfinite=True))
    return [
        f"{key} was {_word(before.get(key, _ABSENT))}, is {_word(now.get(key, _ABSENT))}"
        for key in dict.fromkeys([*before, *now])
        if not _same(before.get(key, _ABSENT), now.get(key, _ABSENT))
        and not any(key == free or key.startswith(f"{free}.") for free in may_change)
    ]


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _same(a: Any, b: Any) -> bool:
    return a == b or (a != a and b != b)  # NaN equals NaN here


def _word(value: Any) -> str:
    return "absent" if value is _ABSENT else repr(value)
