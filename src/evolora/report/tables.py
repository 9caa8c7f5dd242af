"""The tables of answers, steps, costs and facts: plain strings, escaped by the template."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evolora.report.comparison import is_share
from evolora.report.run_data import RunData
from evolora.report.units import NOTHING, number, told, words

MOST_SAMPLES = 60
MOST_STEPS = 300
_LONGEST = 700
_SPENDINGS = {
    "forward_flops": "Forward work",
    "backward_flops": "Backward work",
    "prompt_tokens": "Prompt tokens",
    "generated_tokens": "Generated tokens",
    "evaluations": "Evaluations",
    "seconds": "Time",
}


def samples(data: RunData) -> tuple[list[dict[str, Any]], int]:
    """The sample answers, changed ones first, and how many more there are.

    Each has ``prompt``, ``answer``, ``base``, ``adapted`` (text), ``base_mark``, ``adapted_mark`` ("right" or
    "wrong", the number of a graded reward, "" if not judged) and ``change`` ("now right", "higher", "").
    """
    given = (data.result or {}).get("samples")
    share = is_share(data)
    items = [item for item in given if isinstance(item, Mapping)] if isinstance(given, list) else []
    found = [_sample(item, share) for item in items]
    order = {"now right": 0, "higher": 0, "now wrong": 1, "lower": 1, "": 2}
    found.sort(key=lambda sample: order[sample["change"]])
    return found[:MOST_SAMPLES], max(0, len(found) - MOST_SAMPLES)


def step_table(journal: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]], int]:
    """Column names, rows and the stride: 1 shows every step, 3 every third (and the last)."""
    keys = list(dict.fromkeys(key for entry in journal for key in entry))
    stride = max(1, -(-len(journal) // MOST_STEPS))
    shown = list(journal[::stride])
    if journal and (len(journal) - 1) % stride:
        shown.append(journal[-1])
    return (
        [words(key) for key in keys],
        [[told(key, entry.get(key)) for key in keys] for entry in shown],
        stride,
    )


def cost_table(data: RunData) -> list[tuple[str, str]]:
    """What was spent, in the units that one thinks in."""
    ledger = data.ledger
    return [(spending(key), told(key, ledger[key])) for key in spendings(ledger)]


def spendings(keys: Iterable[str]) -> list[str]:
    """The keys of a ledger, those that matter most first."""
    given = list(keys)
    return [key for key in _SPENDINGS if key in given] + [key for key in given if key not in _SPENDINGS]


def spending(key: str) -> str:
    """What a key of a ledger counts."""
    return _SPENDINGS.get(key, words(key).capitalize())


def fact_table(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Everything that ``run.json`` holds besides status and ledger, one line a fact."""
    flat: list[tuple[str, str]] = []
    for key, value in record.items():
        if key in {"status", "ledger"}:
            continue
        if isinstance(value, Mapping):
            prefix = "" if key == "provenance" else f"{words(key)}: "
            flat += [(prefix + name, text) for name, text in fact_table(value)]
        elif key == "argv" and isinstance(value, list):
            flat.append(("command", shlex.join(str(word) for word in value)))
        elif isinstance(value, list):
            flat.append((words(key), ", ".join(told("", item) for item in value) or NOTHING))
        else:
            flat.append((words(key).removesuffix(" bytes"), told(key, value)))
    return flat


def _sample(item: Mapping[str, Any], share: bool) -> dict[str, Any]:
    before, after = item.get("base_correct"), item.get("adapted_correct")
    return {
        "prompt": _tail(_text(item.get("prompt"))),
        **{key: _clip(_text(item.get(key))) for key in ("answer", "base", "adapted")},
        "base_mark": _mark(before, share),
        "adapted_mark": _mark(after, share),
        "change": _change(before, after, share),
    }


def _change(before: Any, after: Any, share: bool) -> str:
    if before is None or after is None or (bool(before) == bool(after) if share else before == after):
        return ""
    if share:
        return "now right" if after else "now wrong"
    return "higher" if after > before else "lower"


def _mark(reward: Any, share: bool) -> str:
    if reward is None:
        return ""
    return ("right" if reward else "wrong") if share else number(reward)


def _text(value: Any) -> str:
    if isinstance(value, list):  # chat messages
        return "\n".join(
            f"{item.get('role')}: {item.get('content')}" if isinstance(item, Mapping) else str(item)
            for item in value
        )
    return "" if value is None else str(value)


def _clip(text: str) -> str:
    text = text.strip()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rstrip()} … ({len(text):,} characters)"


def _tail(text: str) -> str:
    """A prompt's end, where its question stands."""
    text = text.strip()
    return text if len(text) <= _LONGEST else f"({len(text):,} characters) … {text[-_LONGEST:].lstrip()}"
