"""The effects that a study's claims are about, each with its interval and on its own scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evolora.report.comparison import plain_text
from evolora.report.figures import Figure
from evolora.report.study_verdict import Judged
from evolora.report.units import number

_SLOT, _ABOVE, _BELOW = 92, 28, 34  # pixels: a panel with its name above and its ticks below
_MARGIN = {"l": 12, "r": 24, "t": 4, "b": 4}


def claim_figure(claims: Sequence[Judged]) -> Figure | None:
    """One panel a claim: the effect, its 95 % interval and zero; None without an effect."""
    shown = [(claim, claim.effect) for claim in claims if claim.effect is not None]
    if not shown:
        return None
    data: list[dict[str, Any]] = []
    names: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"margin": _MARGIN, "hovermode": "closest", "showlegend": False}
    for place, (claim, effect) in enumerate(shown):
        axis = str(place + 1) if place else ""
        low, high = 1 - (place + 1) / len(shown), 1 - place / len(shown)
        bottom, top = low + _BELOW / (_SLOT * len(shown)), high - _ABOVE / (_SLOT * len(shown))
        ends = claim.interval or (effect, effect)
        data.append(_effect(claim, effect, ends, axis))
        names.append(_name(claim, top))
        layout[f"xaxis{axis}"] = _scale([effect, *ends], axis)
        layout[f"yaxis{axis}"] = {
            "domain": [bottom, top],
            "anchor": f"x{axis}",
            "range": [-1, 1],
            "visible": False,
        }
    layout["annotations"] = names
    height = _SLOT * len(shown) + _MARGIN["t"] + _MARGIN["b"]
    told = "; ".join(f"{claim.name} {claim.mark}, {_words(claim)}" for claim, _ in shown)
    caption = (
        "The effect that each claim is about, with its 95\N{NO-BREAK SPACE}% interval, each on its own "
        "scale; the upright line is zero. Filled: the claim holds."
    )
    if missing := len(claims) - len(shown):
        caption += f" Without an effect to draw: {missing} of {len(claims)}."
    table = [["claim", "verdict", "effect", "low", "high", "p", "n"], *(_row(claim) for claim in claims)]
    return Figure(
        "claims",
        f"Dot chart of effects with their intervals. {told}.",
        caption,
        height,
        {"all": {"data": data, "layout": layout}},
        tables={"all": table},
    )


def _effect(claim: Judged, effect: float, ends: tuple[float, float], axis: str) -> dict[str, Any]:
    color = "$adapted" if claim.holds else "$base"
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plain_text(claim.name),
        "x": [effect],
        "y": [0],
        "xaxis": f"x{axis}",
        "yaxis": f"y{axis}",
        "text": [plain_text(f"{claim.name}: {_words(claim)}")],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            "symbol": "diamond" if claim.holds else "circle-open",
            "size": 12,
            "color": color,
            "line": {"width": 2, "color": color},
        },
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [ends[1] - effect],
            "arrayminus": [effect - ends[0]],
            "color": color,
            "thickness": 2,
            "width": 6,
        },
    }


def _scale(values: Sequence[float], axis: str) -> dict[str, Any]:
    """Zero is always in sight."""
    low, high = min(0, *values), max(0, *values)
    room = 0.08 * (high - low) or 1.0
    return {
        "anchor": f"y{axis}",
        "range": [low - room, high + room],
        "zeroline": True,
        "zerolinecolor": "$muted",
        "zerolinewidth": 1.5,
    }


def _name(claim: Judged, top: float) -> dict[str, Any]:
    return {
        "text": f"<b>{plain_text(claim.name)}</b> {claim.mark}",
        "x": 0,
        "y": top,
        "xref": "paper",
        "yref": "paper",
        "xanchor": "left",
        "xshift": -_MARGIN["l"],
        "yanchor": "bottom",
        "showarrow": False,
    }


def _words(claim: Judged) -> str:
    ends = claim.interval
    return number(claim.effect) + (f" ({number(ends[0])} to {number(ends[1])})" if ends else "")


def _row(claim: Judged) -> list[Any]:
    low, high = claim.interval or (None, None)
    return [claim.name, claim.mark, claim.effect, low, high, claim.finding.get("p"), claim.finding.get("n")]
