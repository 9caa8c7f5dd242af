"""Base against adapted on fresh test prompts: the rows, the table, the figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evolora.report.figures import Figure
from evolora.report.run_data import RunData
from evolora.report.units import NOTHING, counts_right, is_number, number, percent, signed


def is_share(data: RunData) -> bool:
    """Whether the result's accuracies are shares of right answers (else mean rewards of any range)."""
    values = [part.get("accuracy") for part in (part_of(data, "base"), part_of(data, "adapted"))]
    reward = str(data.find("reward") or "exact")
    return counts_right(reward) and all(0 <= value <= 1 for value in values if is_number(value))


def part_of(data: RunData, key: str) -> Mapping[str, Any]:
    """One part of the result (``base``, ``adapted``, ``difference``); empty when it is not there."""
    part = (data.result or {}).get(key)
    return part if isinstance(part, Mapping) else {}


def looks_of(data: RunData) -> tuple[list[tuple[int, float]], int]:
    """Step and value of each look at the validation prompts, and the step kept; none without a guard."""
    found = part_of(data, "validation")
    looks, kept = found.get("looks"), found.get("kept")
    pairs = [(step, value) for step, value in looks if is_number(value)] if isinstance(looks, list) else []
    return (pairs, kept) if isinstance(kept, int) and kept in dict(pairs) else ([], 0)


def pair(interval: Any) -> tuple[float, float] | None:
    """A confidence interval as (low, high), or None when it is not two numbers."""
    if isinstance(interval, list | tuple) and len(interval) == 2 and all(is_number(end) for end in interval):
        return interval[0], interval[1]
    return None


def comparison_rows(data: RunData) -> list[dict[str, Any]]:
    """``name``, ``n``, ``base`` and ``adapted`` (as in ``result.json``): overall first, then each family."""
    base, adapted = part_of(data, "base"), part_of(data, "adapted")
    if not base or not adapted:
        return []
    rows = [{"name": "all test prompts", "n": adapted.get("n"), "base": base, "adapted": adapted}]
    before, after = _mapping(base.get("families")), _mapping(adapted.get("families"))
    names = list(dict.fromkeys([*before, *after]))
    if len(names) > 1:
        for name in names:
            parts = _mapping(before.get(name)), _mapping(after.get(name))
            rows.append({"name": name, "n": parts[1].get("n"), "base": parts[0], "adapted": parts[1]})
    return rows


def comparison_table(rows: Sequence[Mapping[str, Any]], share: bool) -> list[list[str]]:
    """Name, prompts, base, adapted, change; intervals in brackets."""
    table = []
    for row in rows:
        values = row["base"].get("accuracy"), row["adapted"].get("accuracy")
        change = NOTHING
        if is_number(values[0]) and is_number(values[1]):
            step = values[1] - values[0]
            change = signed(100 * step) if share else signed(step, 3)
        table.append(
            [
                str(row["name"]),
                number(row["n"]),
                _with_interval(row["base"], share),
                _with_interval(row["adapted"], share),
                change,
            ]
        )
    return table


def comparison_figure(rows: Sequence[Mapping[str, Any]], share: bool) -> Figure | None:
    """Base and adapted with their 95 % intervals, one line a family and one overall.

    Args:
        rows: as ``comparison_rows`` gives them.
        share: the values are shares of right answers, drawn from 0 to 100 %.
    """
    if not rows:
        return None
    scale = 100 if share else 1
    names = [str(row["name"]) for row in rows]
    data = []
    for key, color, symbol, offset in (
        ("base", "$base", "circle-open", 0.14),
        ("adapted", "$adapted", "diamond", -0.14),
    ):
        values = [row[key].get("accuracy") for row in rows]
        intervals = [pair(row[key].get("ci")) for row in rows]
        ends = [ends or (value, value) for ends, value in zip(intervals, values, strict=True)]
        known = [
            (i, value, end)
            for i, (value, end) in enumerate(zip(values, ends, strict=True))
            if is_number(value)
        ]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": key,
                "x": [scale * value for _, value, _ in known],
                "y": [len(rows) - 1 - i + offset for i, _, _ in known],
                "text": [plain_text(names[i]) for i, _, _ in known],
                "hovertemplate": "%{text}, "
                + key
                + ": %{x:.4~g}"
                + (" %" if share else "")
                + "<extra></extra>",
                "marker": {
                    "symbol": symbol,
                    "size": 11,
                    "color": color,
                    "line": {"width": 2, "color": color},
                },
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [scale * (high - value) for _, value, (_, high) in known],
                    "arrayminus": [scale * (value - low) for _, value, (low, _) in known],
                    "color": color,
                    "thickness": 2,
                    "width": 5,
                },
            }
        )
    layout = {
        "xaxis": {
            "title": {"text": "right answers, %" if share else "mean reward"},
            **({"range": [-2, 102]} if share else {}),
        },
        "yaxis": named_rows(names),
        "hovermode": "closest",
    }
    say = percent if share else number
    told = [
        f"{row['name']}: base {_say(say, row['base'])}, adapted {_say(say, row['adapted'])}" for row in rows
    ]
    label = f"Dot chart of base against adapted on fresh test prompts. {'; '.join(told)}."
    caption = (
        "Base (open circle) and adapted (filled diamond) on the same fresh test prompts, with bootstrap "
        "intervals of 95\N{NO-BREAK SPACE}%. The two may overlap while their paired difference is clear."
    )
    return Figure(
        "comparison", label, caption, 110 + 46 * len(rows), {"all": {"data": data, "layout": layout}}
    )


def _with_interval(part: Mapping[str, Any], share: bool) -> str:
    if not is_number(part.get("accuracy")):
        return NOTHING
    say, ends = (percent if share else number), pair(part.get("ci"))
    text = say(part["accuracy"])
    return f"{text} [{', '.join(say(end).removesuffix(' %') for end in ends)}]" if ends else text


def _say(say: Any, part: Mapping[str, Any]) -> str:
    return say(part["accuracy"]) if is_number(part.get("accuracy")) else "no value"


def named_rows(names: Sequence[str]) -> dict[str, Any]:
    """The vertical axis of a chart with one row a name, the first on top."""
    return {
        "tickvals": list(range(len(names))),
        "ticktext": [plain_text(name) for name in reversed(names)],
        "range": [-0.6, len(names) - 0.4],
        "showgrid": False,
        "zeroline": False,
        "ticks": "",
        "automargin": True,
    }


def plain_text(text: str) -> str:
    """Plotly reads tags and entities in labels; a user's name must show as it is."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
