"""Figures as plain data for plotly.js; colours are names (``$adapted``) that the page fills in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evolora.report.units import is_number, number, si

_FEW = 60


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        key: its id on the page.
        label: what a reader who cannot see it should know.
        caption: what is drawn.
        height: in CSS pixels.
        views: name of each view to its ``data`` and ``layout``; the first is shown first.
        choice: what the views differ by.
        tables: name of a view to its numbers as rows below their headings, where its traces do not tell them.
    """

    key: str
    label: str
    caption: str
    height: int
    views: Mapping[str, Mapping[str, Any]]
    choice: str = "Horizontal axis"
    tables: Mapping[str, Sequence[Sequence[Any]]] = field(default_factory=dict)


def reward_figure(journal: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Mean and best reward with the spread of the members, over steps and over forward FLOPs.

    A step without a value is a gap in every line. None when no step has a mean reward.
    """
    mean, best = values(journal, "reward_mean"), values(journal, "reward_best")
    known = [
        (entry.get("step"), value) for entry, value in zip(journal, mean, strict=True) if value is not None
    ]
    if not known:
        return None
    spread = values(journal, "reward_std")
    views = {"steps": _reward_view(values(journal, "step"), mean, best, spread, "step")}
    spent = values(journal, "forward_flops")
    if any(spent):
        scale, prefix = _unit(spent)
        scaled = [None if x is None else x / scale for x in spent]
        views["forward FLOPs"] = _reward_view(
            scaled, mean, best, spread, f"forward {prefix}FLOPs spent so far"
        )
    gaps = len(journal) - len(known)
    label = (
        f"Line chart of the reward over {len(journal)} steps. The mean goes from {number(known[0][1], 3)} "
        f"at step {known[0][0]} to {number(known[-1][1], 3)} at step {known[-1][0]}; "
        f"its highest value is {number(max(value for _, value in known), 3)}."
    )
    caption = (
        "Reward of the members of each step on that step's training prompts; higher is better. "
        "The band is one standard deviation of the members to either side of the mean."
    )
    if gaps:
        caption += f" Steps without a value leave a gap ({gaps} of {len(journal)})."
    return Figure("reward", label, caption, 360, views)


def norm_figure(journal: Sequence[Mapping[str, Any]]) -> Figure | None:
    """How far the adapter is from the base and how far each step moved it, one above the other.

    Where the journal says how far the random walk of pure noise goes, that is drawn beside the distance.
    """
    steps = values(journal, "step")
    delta, update = values(journal, "delta_norm"), values(journal, "update_norm")
    if not any(value is not None for value in [*delta, *update]):
        return None
    data = [
        line("distance from the base", steps, delta, "$adapted", axis="y"),
        line("length of the step", steps, update, "$best", axis="y2"),
    ]
    ratio = values(journal, "walk_ratio")
    walk = [d / r if d is not None and r else None for d, r in zip(delta, ratio, strict=True)]
    if any(value is not None for value in walk):
        data.insert(1, line("random walk of pure noise", steps, walk, "$base", axis="y", dash="dash"))
    layout = {
        "xaxis": {"title": {"text": "step"}, "anchor": "y2", "showgrid": False, "zeroline": False},
        "yaxis": {"domain": [0.56, 1], "rangemode": "tozero", "title": {"text": "distance"}},
        "yaxis2": {"domain": [0, 0.44], "rangemode": "tozero", "title": {"text": "step length"}},
        "hovermode": "x unified",
    }
    last = next((value for value in reversed(delta) if value is not None), None)
    label = (
        f"Two line charts over {len(journal)} steps: the norm of the adapter's delta, {number(last, 3)} "
        "at the end, and the norm of each update."
    )
    caption = (
        "Above, the Frobenius norm of the adapter's delta: its distance from the base. "
        "Below, the norm of each step's update."
    )
    if len(data) > 2:
        caption += " The dashed line is how far steps of the same size would have drifted on pure noise."
    return Figure(
        "norms",
        label,
        caption,
        380,
        {"steps": {"data": data, "layout": layout}},
    )


def _reward_view(
    x: list[Any], mean: list[Any], best: list[Any], spread: list[Any], title: str
) -> dict[str, list[dict[str, Any]] | dict[str, Any]]:
    band_x, band_y = band(x, mean, spread)
    data = [
        {
            "type": "scatter",
            "name": "mean ± spread",
            "x": band_x,
            "y": band_y,
            "mode": "lines",
            "fill": "toself",
            "fillcolor": "$band",
            "line": {"width": 0},
            "hoverinfo": "skip",
        },
        line("best member", x, best, "$best", dash="dot"),
        line("mean of the members", x, mean, "$adapted", width=2.5),
    ]
    layout = {
        "xaxis": {"title": {"text": title}, "showgrid": False, "zeroline": False},
        "yaxis": {"title": {"text": "reward"}},
        "hovermode": "x unified",
    }
    return {"data": [trace for trace in data if any(y is not None for y in trace["y"])], "layout": layout}


def validation_figure(looks: Sequence[tuple[int, float]], kept: int) -> Figure | None:
    """The validation reward at each look, the state that was kept marked; None without looks."""
    if not looks:
        return None
    steps, seen = [step for step, _ in looks], [value for _, value in looks]
    mark = {
        "type": "scatter",
        "mode": "markers",
        "name": "kept",
        "x": [kept],
        "y": [dict(looks)[kept]],
        "marker": {"symbol": "diamond", "size": 11, "color": "$best"},
        "hovertemplate": "kept: %{y:.4~g}<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "step"}},
        "yaxis": {"title": {"text": "mean reward, validation"}},
        "hovermode": "x unified",
    }
    told = ", ".join(f"{number(value, 3)} at step {step}" for step, value in looks)
    caption = "Mean reward on the validation prompts at each look; the diamond is the state that was kept."
    data = [line("validation", steps, seen, "$adapted"), mark]
    label = f"Line chart of the validation reward: {told}. Kept is step {kept}."
    return Figure("validation", label, caption, 280, {"steps": {"data": data, "layout": layout}})


def line(
    name: str,
    x: list[Any],
    y: list[Any],
    color: str,
    *,
    axis: str = "y",
    dash: str = "solid",
    width: float = 1.75,
) -> dict[str, Any]:
    """A curve; None in ``y`` is a gap."""
    return {
        "type": "scatter",
        "name": name,
        "x": x,
        "y": y,
        "yaxis": axis,
        "mode": "lines+markers"
        if len(x) <= _FEW or None in y
        else "lines",  # a value between gaps is a marker alone
        "line": {"color": color, "width": width, "dash": dash},
        "marker": {"size": 5, "color": color},
        "connectgaps": False,
        "hovertemplate": "%{y:.4~g}",
    }


def band(x: Sequence[Any], mean: Sequence[Any], spread: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The outline of mean - spread .. mean + spread: one closed polygon for each stretch without a gap."""
    outline_x: list[Any] = []
    outline_y: list[Any] = []
    stretch: list[tuple[float, float, float]] = []
    for point in [*zip(x, mean, spread, strict=True), (None, None, None)]:
        if None not in point:
            stretch.append(point)
            continue
        if len(stretch) > 1:
            forth, back = stretch, stretch[::-1]
            outline_x += [p[0] for p in forth] + [p[0] for p in back] + [None]
            outline_y += [p[1] + p[2] for p in forth] + [p[1] - p[2] for p in back] + [None]
        stretch = []
    return outline_x, outline_y


def values(journal: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
    """One entry a step: the number under the key, or None."""
    return [entry.get(key) if is_number(entry.get(key)) else None for entry in journal]


def _unit(values: Sequence[Any]) -> tuple[float, str]:
    largest = max(value for value in values if value is not None)
    scaled, prefix = si(largest)
    return (largest / scaled if scaled else 1.0), prefix
