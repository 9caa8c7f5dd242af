"""The tables of a study: arms, cells, settings, spending; plain strings, escaped by the template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from evolora.report.study_data import StudyData, listed, mapping
from evolora.report.tables import spending, spendings
from evolora.report.units import NOTHING, is_number, number, told, words


@dataclass(frozen=True)
class Entry:
    """One place in a table that can be sorted.

    Attributes:
        text: what is shown.
        value: what is sorted by; empty where there is no value.
    """

    text: str
    value: str


Table = tuple[list[str], list[list[Entry]]]  # headings, rows


def arm_table(data: StudyData) -> Table:
    """Mean and standard deviation over seeds of every measure."""
    rows = [
        [_text(arm), *(_spread(data.values(arm, measure.key)) for measure in data.measures)]
        for arm in data.arms
    ]
    return ["arm", *(measure.title for measure in data.measures)], rows


def cell_table(data: StudyData) -> Table:
    """Every number of every cell."""
    rows = [
        [_text(cell["arm"]), _text(str(cell["seed"])), *(_number(cell.get(key)) for key in data.keys)]
        for cell in data.cells
    ]
    return ["arm", "seed", *(words(key) for key in data.keys)], rows


def setting_table(data: StudyData) -> Table:
    """What every arm is, what was chosen for it, and among how many."""
    chosen, arms = mapping(data.record.get("chosen")), mapping(data.plan.get("arms"))
    rows = []
    for name in data.arms:
        arm = mapping(arms.get(name))
        tried = len(listed(arm.get("grid")))
        entries = _text(name), _text(_settings(arm.get("options"))), _text(_settings(chosen.get(name)))
        rows.append([*entries, Entry(number(tried) if tried else "not tuned", str(tried))])
    return ["arm", "options", "chosen on the tuning seeds", "settings tried"], rows


def spending_table(data: StudyData) -> Table:
    """The mean of what a cell of each arm spent; no rows where no cell has a ledger."""
    ledgers = {arm: [mapping(cell.get("ledger")) for cell in data.of_arm(arm)] for arm in data.arms}
    keys = spendings(dict.fromkeys(key for found in ledgers.values() for ledger in found for key in ledger))
    rows = [
        [_text(arm), *(_mean(key, [ledger.get(key) for ledger in found]) for key in keys)]
        for arm, found in ledgers.items()
    ]
    return ["arm", *(spending(key).lower() for key in keys)], rows if keys else []


def _spread(values: Sequence[float | None]) -> Entry:
    known = [value for value in values if value is not None]
    if not known:
        return Entry(NOTHING, "")
    text = number(fmean(known))
    if len(known) > 1:
        text += f" ± {number(stdev(known), 3)}"
    if len(known) < len(values):
        text += f" ({len(known)} of {len(values)})"
    return Entry(text, repr(fmean(known)))


def _mean(key: str, values: Sequence[Any]) -> Entry:
    known = [value for value in values if is_number(value)]
    return Entry(told(key, fmean(known)), repr(fmean(known))) if known else Entry(NOTHING, "")


def _number(value: Any) -> Entry:
    return Entry(number(value), repr(value) if is_number(value) else "")


def _text(text: str) -> Entry:
    return Entry(text, text)


def _settings(given: Any) -> str:
    """``lr 0.03, weight decay 0``."""
    parts = [f"{words(key)} {_value(value)}" for key, value in mapping(given).items()]
    return ", ".join(parts) or NOTHING


def _value(value: Any) -> str:
    return json.dumps(value) if isinstance(value, list | Mapping) else told("", value)
