"""The diagnostics of a run in words, one line each; names and units as in docs/diagnostics.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evolora.report.comparison import pair
from evolora.report.run_data import RunData
from evolora.report.units import counts_right, decimals, is_number, number, percent, signed


def diagnostic_table(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The main numbers in words, one line each; ``found`` is what ``evolora.diagnostics.diagnose`` gives."""
    rows = [
        ("Length against a random walk", _drift(found)),
        ("Stable rank, all modules", _say(found, ("spectra", "whole", "stable_rank"), digits=4)),
        ("Effective rank, all modules", _say(found, ("spectra", "whole", "effective_rank"), digits=4)),
        ("Energy in the top 16 directions", _share(found, ("spectra", "whole", "energy", "16"))),
        ("Change over weight (rms)", _say(found, ("sparsity", "whole", "relative"))),
        ("Changes below 1 % of the weights' rms", _share(found, ("sparsity", "whole", "below", "0.01"))),
        ("Entries that bf16 would swallow", _share(found, ("sparsity", "whole", "swallowed"))),
        ("Slope of magnitude on direction", _say(found, ("decomposition", "slope"))),
        ("Cosine of one step with the gradient", _cosine(found)),
        ("Barrier on the line", _say(found, ("path", "barrier"), "{} of reward below the straight line")),
        ("KL to the base on task", _say(found, ("divergence", "on_task", "to_base"), "{} nats a token")),
        ("KL to the base off task", _say(found, ("divergence", "off_task", "to_base"), "{} nats a token")),
        ("Prior task, change", retained(found)),
    ]
    spent = at(found, ("ledger", "seconds"))
    if is_number(spent):
        rows.append(("Time of the diagnostics", f"{number(spent, 3)} s (not in the cost of the run)"))
    return [(name, text) for name, text in rows if text]


def absent_table(data: RunData) -> list[tuple[str, str]]:
    """What was not computed, and why."""
    absent = (data.diagnostics or {}).get("not_applicable")
    rows = absent.items() if isinstance(absent, Mapping) else ()
    return [(str(name), str(reason)) for name, reason in rows]


def at(found: Any, path: Sequence[str]) -> Any:
    """The value at the end of a path of keys; None where one is missing."""
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _say(found: Mapping[str, Any], path: Sequence[str], text: str = "{}", digits: int = 3) -> str:
    value = at(found, path)
    return text.format(number(value, digits)) if is_number(value) else ""


def _share(found: Mapping[str, Any], path: Sequence[str]) -> str:
    value = at(found, path)
    return percent(value) if is_number(value) else ""


def _drift(found: Mapping[str, Any]) -> str:
    ratio = at(found, ("walk", "ratio"))
    return f"{decimals(ratio, 2)} (1 is pure noise)" if is_number(ratio) else ""


def _cosine(found: Mapping[str, Any]) -> str:
    cosine, expected = (at(found, ("gradient", key)) for key in ("cosine", "expected"))
    if not is_number(cosine):
        return ""
    text = number(cosine, 3)
    return f"{text} ({number(expected, 3)} without noise and curvature)" if is_number(expected) else text


def retained(found: Mapping[str, Any]) -> str:
    """The prior task and its paired change with the interval."""
    part = at(found, ("retention", "difference"))
    value = part.get("value") if isinstance(part, Mapping) else None
    if not is_number(value):
        return ""
    share = counts_right(str(at(found, ("retention", "reward"))))
    scale, digits, unit = (100, 1, " points") if share else (1, 3, "")
    ends = pair(part.get("ci"))
    interval = f" [{', '.join(signed(scale * end, digits) for end in ends)}]" if ends else ""
    return f"{at(found, ('retention', 'task'))} {signed(scale * value, digits)}{unit}{interval}"
