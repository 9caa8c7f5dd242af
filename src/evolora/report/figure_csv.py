"""The numbers of a figure as CSV, for whoever draws it again elsewhere."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = Sequence[Any]


def csv_of(view: Mapping[str, Any], table: Sequence[Row] | None = None) -> str:
    """One view as CSV with a line of headings; what has no value is empty.

    Args:
        view: ``data`` and ``layout`` for plotly.js.
        table: headings and rows where the figure has its own; else a row is a point of a series. A filled
            band becomes its upper and its lower edge, error bars become ``low`` and ``high``.
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(table if table is not None else _rows(view))
    return text.getvalue()


def _rows(view: Mapping[str, Any]) -> Iterator[Row]:
    layout = view["layout"]
    yield "series", "label", _title(layout, "x"), _title(layout, "y"), "low", "high"
    for trace in view["data"]:
        name = html.unescape(trace.get("name", ""))
        if trace.get("fill") == "toself":
            yield from _edges(name, trace["x"], trace["y"])
            continue
        labels = trace.get("text") or [""] * len(trace["x"])
        for i, (x, y, label) in enumerate(zip(trace["x"], trace["y"], labels, strict=True)):
            yield name, html.unescape(str(label)), _plain(x), _plain(y), *_ends(trace, i)


def _title(layout: Mapping[str, Any], axis: str) -> str:
    """What all axes of a direction are called; the direction where they are called differently."""
    titles = {
        layout[key].get("title", {}).get("text", axis) for key in layout if key.startswith(f"{axis}axis")
    }
    return html.unescape(titles.pop()) if len(titles) == 1 else axis


def _edges(name: str, x: Sequence[Any], y: Sequence[Any]) -> Iterator[Row]:
    """A band's outline goes forth along its upper edge and back along its lower one, stretch by stretch."""
    stretch: list[tuple[Any, Any]] = []
    for point in zip(x, y, strict=True):
        if point[0] is not None:
            stretch.append(point)
            continue
        half = len(stretch) // 2
        yield from ((f"{name}, upper edge", "", *edge, "", "") for edge in stretch[:half])
        yield from ((f"{name}, lower edge", "", *edge, "", "") for edge in reversed(stretch[half:]))
        stretch = []


def _ends(trace: Mapping[str, Any], i: int) -> tuple[Any, Any]:
    for axis in ("x", "y"):
        if bars := trace.get(f"error_{axis}"):
            at, up = trace[axis][i], bars["array"][i]
            return at - bars.get("arrayminus", bars["array"])[i], at + up
    return "", ""


def _plain(value: Any) -> Any:
    return html.unescape(value) if isinstance(value, str) else value
