"""What a run changed beside its task, drawn: populations, modules, the line to the adapter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evolora.report.comparison import plain_text
from evolora.report.diagnostic_table import at
from evolora.report.figures import Figure, line, values
from evolora.report.forgetting import divergence_figure, retention_figure
from evolora.report.run_data import RunData
from evolora.report.units import is_number, number

_TICKS = 40  # modules whose names still fit below the bars


def diagnostic_figures(data: RunData) -> list[Figure]:
    """Those whose numbers are there, in the order of the page."""
    found = data.diagnostics or {}
    figures = (
        population_figure(data.journal),
        module_figure(found),
        decomposition_figure(found),
        path_figure(found),
        divergence_figure(found),
        retention_figure(data, found),
    )
    return [figure for figure in figures if figure is not None]


def population_figure(journal: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Effective sample size and diversity over the steps, where a method keeps a population."""
    steps = values(journal, "step")
    size, apart = values(journal, "ess"), values(journal, "diversity")
    if not any(value is not None for value in [*size, *apart]):
        return None
    data = [
        line("effective sample size", steps, size, "$adapted", axis="y"),
        line("mean pairwise distance", steps, apart, "$best", axis="y2"),
    ]
    layout = {
        "xaxis": {"title": {"text": "step"}, "anchor": "y2", "showgrid": False, "zeroline": False},
        "yaxis": {"domain": [0.56, 1], "rangemode": "tozero", "title": {"text": "members"}},
        "yaxis2": {"domain": [0, 0.44], "rangemode": "tozero", "title": {"text": "distance"}},
        "hovermode": "x unified",
    }
    known = [value for value in size if value is not None]
    label = f"Two line charts over {len(journal)} steps: the effective sample size, "
    label += f"at least {number(min(known), 3)}, " if known else "not recorded, "
    caption = (
        "Above, how many members the weights leave (1 over the sum of their squares). "
        "Below, the mean pairwise distance of the members' deltas."
    )
    return Figure(
        "population", label + "and the diversity.", caption, 380, {"steps": {"data": data, "layout": layout}}
    )


def module_figure(found: Mapping[str, Any]) -> Figure | None:
    """One bar a module: ranks, relative change, drift; one view each."""
    views = {}
    for name, title, path in (
        ("effective rank", "effective rank", ("spectra", "effective_rank")),
        ("stable rank", "stable rank", ("spectra", "stable_rank")),
        ("relative change", "rms of the change / rms of the weight", ("sparsity", "relative")),
        ("drift", "length / length of a random walk", ("walk", "")),
    ):
        modules = at(found, (path[0], "modules"))
        if not isinstance(modules, Mapping):
            continue
        parts = ((m, v.get(path[1]) if isinstance(v, Mapping) else v) for m, v in modules.items())
        bars = {str(module): value for module, value in parts if is_number(value)}
        if bars:
            views[name] = _bars(bars, title)
    if not views:
        return None
    first, view = next(iter(views.items()))
    heights = view["data"][0]["y"]
    label = (
        f"Bar chart over {len(heights)} modules; {first} from {number(min(heights), 3)} "
        f"to {number(max(heights), 3)}."
    )
    caption = (
        "One bar a module, in the order of the model. Ranks are those of the delta that the search arrived "
        "at, before it was truncated for export."
    )
    return Figure("modules", label, caption, 360, views, "What is drawn")


def decomposition_figure(found: Mapping[str, Any]) -> Figure | None:
    """Change of magnitude against change of direction, one point a module."""
    modules = at(found, ("decomposition", "modules"))
    points = [
        (str(name), part.get("direction"), part.get("magnitude"))
        for name, part in (modules.items() if isinstance(modules, Mapping) else ())
        if isinstance(part, Mapping)
    ]
    points = [point for point in points if is_number(point[1]) and is_number(point[2])]
    if not points:
        return None
    names, turned, grown = zip(*points, strict=True)
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "modules",
            "x": list(turned),
            "y": list(grown),
            "text": [plain_text(name) for name in names],
            "marker": {"size": 8, "color": "$adapted", "opacity": 0.75},
            "hovertemplate": "%{text}<br>direction %{x:.3~g}, magnitude %{y:.3~g}<extra></extra>",
        }
    ]
    layout = {
        "xaxis": {"title": {"text": "change of direction, 1 - cosine"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "change of magnitude"}, "rangemode": "tozero"},
        "hovermode": "closest",
        "showlegend": False,
    }
    slope, correlation = (at(found, ("decomposition", key)) for key in ("slope", "correlation"))
    told = f"slope {number(slope, 3)}, correlation {number(correlation, 3)}"
    label = f"Scatter of the change of magnitude over that of direction of {len(points)} modules; {told}."
    caption = (
        "Each point is a module: how much its output channels turned against how much they grew or shrank "
        f"(DoRA's analysis; {told})."
    )
    return Figure("decomposition", label, caption, 380, {"all": {"data": data, "layout": layout}})


def path_figure(found: Mapping[str, Any]) -> Figure | None:
    """The reward along the straight line to the adapter."""
    path = found.get("path")
    if not isinstance(path, Mapping):
        return None
    where, rewards = path.get("positions"), path.get("rewards")
    if not (isinstance(where, list) and isinstance(rewards, list) and len(where) == len(rewards)):
        return None
    rewards = [value if is_number(value) else None for value in rewards]
    if not any(value is not None for value in rewards):
        return None
    data = [line("mean reward", where, rewards, "$adapted", width=2.5)]
    first = plain_text(str(path.get("first", "the first adapter")))
    layout = {
        "xaxis": {"title": {"text": f"share of the way from {first} (0) to the adapter (1)"}},
        "yaxis": {"title": {"text": "reward"}},
        "hovermode": "x unified",
        "showlegend": False,
    }
    told = ", ".join(f"{number(r, 3)} at {number(t)}" for t, r in zip(where, rewards, strict=True))
    caption = (
        f"Mean reward on {number(path.get('prompts'))} validation prompts along the straight line through "
        "the deltas. Beyond 1 the step is lengthened: a rise there says that it was too short."
    )
    label = f"Line chart of the mean reward along the line from {path.get('first', 'the start')}: {told}."
    return Figure("path", label, caption, 320, {"all": {"data": data, "layout": layout}})


def _bars(bars: Mapping[str, float], title: str) -> dict[str, Any]:
    names = [plain_text(name) for name in bars]
    data = [
        {
            "type": "bar",
            "name": title,
            "x": list(range(len(bars))),
            "y": list(bars.values()),
            "text": names,
            "textposition": "none",
            "marker": {"color": "$adapted"},
            "hovertemplate": "%{text}: %{y:.3~g}<extra></extra>",
        }
    ]
    few = len(bars) <= _TICKS
    axis = {"tickvals": list(range(len(bars))), "ticktext": [_short(n) for n in names], "tickangle": -60}
    layout = {
        "xaxis": {
            "title": {"text": "" if few else "modules, in the order of the model"},
            "showgrid": False,
            "automargin": True,
            **(axis if few else {"showticklabels": False}),
        },
        "yaxis": {"title": {"text": title}, "rangemode": "tozero"},
        "hovermode": "closest",
        "showlegend": False,
    }
    return {"data": data, "layout": layout}


def _short(name: str) -> str:
    """``model.layers.29.self_attn.q_proj`` as ``29.q_proj``."""
    parts = name.split(".")
    layer = next((part for part in parts if part.isdigit()), "")
    return f"{layer}.{parts[-1]}" if layer and parts[-1] != layer else parts[-1]
