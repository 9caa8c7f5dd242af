"""What every arm reached, one dot a seed, the same seed joined from arm to arm."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from evolora.report.arms import look_of
from evolora.report.comparison import named_rows, plain_text
from evolora.report.figures import Figure
from evolora.report.study_data import Measure, StudyData
from evolora.report.units import number

_ROW = 34
_LONGEST = 26  # characters of an arm's name beside its row


def measure_figures(data: StudyData) -> list[Figure]:
    """One a measure that has a value."""
    drawn = (_figure(data, place, measure) for place, measure in enumerate(data.measures, 1))
    return [figure for figure in drawn if figure is not None]


def _figure(data: StudyData, place: int, measure: Measure) -> Figure | None:
    values = {arm: data.values(arm, measure.key) for arm in data.arms}
    known = {arm: [value for value in found if value is not None] for arm, found in values.items()}
    if not any(known.values()):
        return None
    rows = {arm: len(data.arms) - 1 - i for i, arm in enumerate(data.arms)}
    traces = _pairs(values, rows, data.seeds)
    for i, arm in enumerate(data.arms):
        traces += _dots(arm, i, rows[arm], values[arm], data.seeds)
    layout = {
        "xaxis": {"title": {"text": plain_text(measure.title)}, "zeroline": False},
        "yaxis": named_rows([_clipped(arm) for arm in data.arms]),
        "hovermode": "closest",
        "showlegend": False,
        "margin": {"l": 12, "r": 16, "t": 8, "b": 48},
    }
    told = "; ".join(
        f"{arm}: mean {number(fmean(found))} (n = {len(found)})" if found else f"{arm}: no value"
        for arm, found in known.items()
    )
    caption = f"{measure.title[:1].upper()}{measure.title[1:]}. One dot a seed, the upright bar their mean"
    caption += "; thin lines join a seed's values." if len(data.arms) > 1 and len(data.seeds) > 1 else "."
    if gaps := sum(value is None for found in values.values() for value in found):
        caption += f" {gaps} of {len(data.arms) * len(data.seeds)} cells have no value."
    table: list[list[Any]] = [["arm", "seed", measure.key]]
    table += [[arm, seed, v] for arm in data.arms for seed, v in zip(data.seeds, values[arm], strict=True)]
    return Figure(
        f"measure-{place}",
        f"Dot chart of {measure.title} for every arm. {told}.",
        caption,
        64 + _ROW * max(2, len(data.arms)),
        {"all": {"data": traces, "layout": layout}},
        tables={"all": table},
    )


def _pairs(
    values: dict[str, list[float | None]], rows: dict[str, int], seeds: Sequence[Any]
) -> list[dict[str, Any]]:
    if len(rows) < 2:
        return []
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [values[arm][i] for arm in rows],
            "y": list(rows.values()),
            "line": {"color": "$muted", "width": 0.75},
            "opacity": 0.45,
            "connectgaps": False,
            "hoverinfo": "skip",
        }
        for i in range(len(seeds))
    ]


def _dots(
    arm: str, place: int, row: int, values: Sequence[float | None], seeds: Sequence[Any]
) -> list[dict[str, Any]]:
    known = [(seed, value) for seed, value in zip(seeds, values, strict=True) if value is not None]
    if not known:
        return []
    look, name = look_of(place), plain_text(arm)
    dots = {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [value for _, value in known],
        "y": [row] * len(known),
        "text": [f"{name}, seed {plain_text(str(seed))}" for seed, _ in known],
        "hovertemplate": "%{text}: %{x:.4~g}<extra></extra>",
        "marker": {"symbol": look.symbol, "size": 8, "color": look.color, "opacity": 0.8},
    }
    mean = {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [fmean(value for _, value in known)],
        "y": [row],
        "text": [name],
        "hovertemplate": "%{text}, mean: %{x:.4~g}<extra></extra>",
        "marker": {"symbol": "line-ns", "size": 24, "line": {"width": 3, "color": look.color}},
    }
    return [dots, mean]


def _clipped(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
