"""Curves of all arms in one figure: the mean over seeds and its standard error, on a grid that seeds share.

A seed's curve is linear between its points. The grid of an arm holds the points of all its seeds within the
range that they share, or 200 even steps of it where there are more. A value that came to nothing is a gap in
its seed, and so in the mean: a mean over fewer seeds would jump where one of them drops out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np

from evolora.report.arms import look_of
from evolora.report.comparison import plain_text
from evolora.report.figures import Figure, band, line
from evolora.report.study_data import StudyData, listed, mapping
from evolora.report.units import is_number, number, si

_MOST = 200
_WIDTH = 36  # characters of a title beside its axis
Points = list[tuple[float, float]]  # y is nan where it came to nothing


@dataclass(frozen=True)
class Mean:
    """The mean of some seeds' curves; None where one of them has a gap.

    Attributes:
        x: the grid.
        y: the mean.
        error: its standard error; all None where there is one seed.
        seeds: how many.
    """

    x: list[float]
    y: list[float | None]
    error: list[float | None]
    seeds: int


def curve_figure(data: StudyData) -> Figure | None:
    """One view a curve that any cell has; None without curves."""
    names = dict.fromkeys(name for cell in data.cells for name in mapping(cell.get("curves")))
    views, tables, parted = {}, {}, set()
    for name in names:
        seeds = {arm: [_points(cell, name) for cell in data.of_arm(arm)] for arm in data.arms}
        means = {arm: mean_curve(points) for arm, points in seeds.items()}
        parted |= {arm for arm, mean in means.items() if mean is None and any(seeds[arm])}
        drawn = {arm: mean for arm, mean in means.items() if mean is not None}
        if drawn:
            views[name] = _view(data, data.measure(name).title, drawn)
            tables[name] = _table(_axis(data), drawn)
    if not views:
        return None
    first = next(iter(views))
    ends = ", ".join(f"{row[0]} {number(row[2])}" for row in _last(tables[first]))
    caption = (
        f"Mean over seeds against {_axis(data)}; the band is one standard error of the mean to either side. "
        "Seeds are joined by straight lines between their points, within the range that they share; "
        "a curve has a gap where one of its seeds has no value."
    )
    if parted:
        caption += f" Seeds that share no range have no mean: {', '.join(sorted(parted))}."
    return Figure(
        "curves",
        f"Line chart of {', '.join(views)} against {_axis(data)}, one line an arm. {first} ends at: {ends}.",
        caption,
        380 + 14 * len(data.arms),
        views,
        "Curve",
        tables,
    )


def mean_curve(curves: Iterable[Points]) -> Mean | None:
    """The mean of the curves that have a point; None where there are none, or they share no range."""
    given = [np.array(points).T for points in curves if points]
    if not given:
        return None
    low, high = max(x[0] for x, _ in given), min(x[-1] for x, _ in given)
    if low > high:
        return None
    grid = np.unique(np.concatenate([x for x, _ in given]))
    grid = grid[(grid >= low) & (grid <= high)]
    if grid.size > _MOST:
        grid = np.linspace(low, high, _MOST)
    values = np.stack([np.interp(grid, x, y) for x, y in given])
    n = len(given)
    error = values.std(axis=0, ddof=1) / n**0.5 if n > 1 else np.full(grid.size, np.nan)
    return Mean([_short(x) for x in grid], _plain(values.mean(axis=0)), _plain(error), n)


def _points(cell: Any, name: str) -> Points:
    """One curve of a cell in the order of x, the last of equal x."""
    points = listed(mapping(cell.get("curves")).get(name))
    pairs = (point for point in points if isinstance(point, list) and len(point) == 2)
    found = {x: y if is_number(y) else float("nan") for x, y in pairs if is_number(x)}
    return sorted(found.items()) if any(value == value for value in found.values()) else []


def _view(data: StudyData, title: str, means: dict[str, Mean]) -> dict[str, Any]:
    largest = max(abs(x) for mean in means.values() for x in mean.x)
    scaled, prefix = si(largest) if "FLOPs" in _axis(data) else (largest, "")
    unit = largest / scaled if scaled else 1.0
    bands, lines = [], []
    for arm, mean in means.items():
        look = look_of(data.arms.index(arm))
        x = [value / unit for value in mean.x]
        few = f" ({mean.seeds} of {len(data.seeds)} seeds)" if mean.seeds < len(data.seeds) else ""
        drawn = line(plain_text(arm) + few, x, mean.y, look.color, dash=look.dash, width=2)
        drawn["marker"]["symbol"] = look.symbol
        lines.append(drawn)
        outline_x, outline_y = band(x, mean.y, mean.error)
        if outline_x:
            bands.append(_band(outline_x, outline_y, look.color))
    layout = {
        "xaxis": {
            "title": {"text": plain_text(_axis(data).replace("FLOPs", f"{prefix}FLOPs"))},
            "showgrid": False,
            "zeroline": False,
        },
        "yaxis": {
            "title": {"text": "<br>".join(map(plain_text, wrap(title, _WIDTH)))},
            "zeroline": False,
            "automargin": True,
        },
        "hovermode": "x unified" if len(means) < 5 else "closest",
        "showlegend": True,
    }
    return {"data": bands + lines, "layout": layout}


def _band(x: Sequence[Any], y: Sequence[Any], color: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "fill": "toself",
        "fillcolor": color,
        "opacity": 0.16,
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _table(axis: str, means: dict[str, Mean]) -> list[list[Any]]:
    rows = [
        [arm, *point, mean.seeds]
        for arm, mean in means.items()
        for point in zip(mean.x, mean.y, mean.error, strict=True)
    ]
    return [["arm", axis, "mean", "standard error", "seeds"], *rows]


def _last(table: list[list[Any]]) -> list[list[Any]]:
    """Each arm's last row that has a value."""
    return list({row[0]: row for row in table[1:] if row[2] is not None}.values())


def _axis(data: StudyData) -> str:
    return str(data.record.get("axis") or "forward FLOPs")


def _plain(values: Any) -> list[float | None]:
    return [_short(value) if np.isfinite(value) else None for value in values]


def _short(value: float) -> float:
    """Six digits: enough to draw, and a page that can be sent."""
    return float(f"{value:.6g}")
