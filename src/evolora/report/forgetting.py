"""What a run did beside its task, drawn: how far the model is from its base, and what it forgot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from evolora.report.comparison import comparison_figure, is_share, named_rows, pair, plain_text
from evolora.report.diagnostic_table import at, retained
from evolora.report.figures import Figure
from evolora.report.run_data import RunData
from evolora.report.units import is_number, number


def divergence_figure(found: Mapping[str, Any]) -> Figure | None:
    """KL to the base, on task and off task, with intervals."""
    rows = [
        (words, part)
        for words, key in (("on task", "on_task"), ("off task", "off_task"))
        if is_number(at(found, ("divergence", key, "to_base"))) and (part := found["divergence"][key])
    ]
    if not rows:
        return None
    ends = [pair(part.get("ci")) or (part["to_base"], part["to_base"]) for _, part in rows]
    names = [f"{words}: {part.get('task', '')}" for words, part in rows]
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "KL to the base",
            "x": [part["to_base"] for _, part in rows],
            "y": list(range(len(rows)))[::-1],
            "text": [plain_text(name) for name in names],
            "hovertemplate": "%{text}: %{x:.3~g}<extra></extra>",
            "marker": {"symbol": "diamond", "size": 11, "color": "$adapted"},
            "error_x": {
                "type": "data",
                "symmetric": False,
                "array": [high - part["to_base"] for (_, high), (_, part) in zip(ends, rows, strict=True)],
                "arrayminus": [part["to_base"] - low for (low, _), (_, part) in zip(ends, rows, strict=True)],
                "color": "$adapted",
                "thickness": 2,
                "width": 5,
            },
        }
    ]
    layout = {
        "xaxis": {"title": {"text": "nats per token"}, "rangemode": "tozero"},
        "yaxis": named_rows(names),
        "hovermode": "closest",
        "showlegend": False,
    }
    told = "; ".join(f"{name} {number(row[1]['to_base'], 3)}" for name, row in zip(names, rows, strict=True))
    caption = (
        "KL(adapted || base) of the next token over the whole vocabulary, on continuations that the base "
        "wrote, with bootstrap intervals of 95\N{NO-BREAK SPACE}% over prompts."
    )
    label = f"Dot chart of the divergence from the base in nats per token: {told}."
    height = 110 + 46 * len(rows)
    return Figure("divergence", label, caption, height, {"all": {"data": data, "layout": layout}})


def retention_figure(data: RunData, found: Mapping[str, Any]) -> Figure | None:
    """The prior task before and after."""
    part = found.get("retention")
    if not isinstance(part, Mapping):
        return None
    before, after = part.get("before"), part.get("after")
    if not (isinstance(before, Mapping) and isinstance(after, Mapping)):
        return None
    task = str(part.get("task", "prior task"))
    share = is_share(replace(data, result={"reward": part.get("reward"), "base": before, "adapted": after}))
    rows = [{"name": task, "n": after.get("n"), "base": before, "adapted": after}]
    drawn = comparison_figure(rows, share)
    caption = (
        f"{task}, which the search never saw, before (open circle) and after (filled diamond), with "
        f"bootstrap intervals of 95\N{NO-BREAK SPACE}%. The paired change: {retained(found) or 'no value'}."
    )
    label = f"Dot chart of a prior task before and after. {retained(found) or 'No value'}."
    return None if drawn is None else replace(drawn, key="retention", caption=caption, label=label)
