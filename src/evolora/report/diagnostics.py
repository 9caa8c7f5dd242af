"""What a run changed beside its task, drawn: modules, populations, the line, divergence, forgetting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from evolora.report.comparison import comparison_figure, is_share, pair, plain_text
from evolora.report.figures import Figure, line, values
from evolora.report.run_data import RunData
from evolora.report.units import decimals, is_number, number, percent, signed

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


def diagnostic_table(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The main numbers in words, one line each; ``found`` is what ``evolora.diagnostics.diagnose`` gives."""
    rows = [
        ("Length against a random walk", _drift(found)),
        ("Stable rank, all modules", _say(found, ("spectra", "whole", "stable_rank"), digits=4)),
        ("Effective rank, all modules", _say(found, ("spectra", "whole", "effective_rank"), digits=4)),
        ("Energy in the top 16 directions", _share(found, ("spectra", "whole", "energy", "16"))),
        ("Change over weight (rms)", _say(found, ("sparsity", "whole", "relative"))),
        ("Changes below 1 % of the weights' rms", _share(found, ("sparsity", "whole", "below", "0.01"))),
        ("Entries that bf16 would swallow", _share(found, ("sparsity", "whole", "swallowed"))),
        ("Slope of magnitude on direction", _say(found, ("decomposition", "slope"))),
        ("Cosine of one step with the gradient", _cosine(found)),
        ("Barrier on the line", _say(found, ("path", "barrier"), "{} in the reward's unit")),
        ("KL to the base on task", _say(found, ("divergence", "on_task", "to_base"), "{} nats a token")),
        ("KL to the base off task", _say(found, ("divergence", "off_task", "to_base"), "{} nats a token")),
        ("Prior task, change", _retained(found)),
    ]
    spent = _at(found, ("ledger", "seconds"))
    if is_number(spent):
        rows.append(("Time of the diagnostics", f"{number(spent, 3)} s (not in the cost of the run)"))
    return [(name, text) for name, text in rows if text]


def absent_table(data: RunData) -> list[tuple[str, str]]:
    """What was not computed, and why."""
    absent = (data.diagnostics or {}).get("not_applicable")
    rows = absent.items() if isinstance(absent, Mapping) else ()
    return [(str(name), str(reason)) for name, reason in rows]


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
        modules = _at(found, (path[0], "modules"))
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
    modules = _at(found, ("decomposition", "modules"))
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
    slope, correlation = (_at(found, ("decomposition", key)) for key in ("slope", "correlation"))
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


def divergence_figure(found: Mapping[str, Any]) -> Figure | None:
    """KL to the base, on task and off task, with intervals."""
    rows = [
        (words, part)
        for words, key in (("on task", "on_task"), ("off task", "off_task"))
        if is_number(_at(found, ("divergence", key, "to_base"))) and (part := found["divergence"][key])
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
        "yaxis": {
            "tickvals": list(range(len(rows))),
            "ticktext": [plain_text(name) for name in reversed(names)],
            "range": [-0.6, len(rows) - 0.4],
            "showgrid": False,
            "ticks": "",
            "automargin": True,
        },
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
        f"bootstrap intervals of 95\N{NO-BREAK SPACE}%. The paired change: {_retained(found) or 'no value'}."
    )
    label = f"Dot chart of a prior task before and after. {_retained(found) or 'No value'}."
    return None if drawn is None else replace(drawn, key="retention", caption=caption, label=label)


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


def _at(found: Any, path: Sequence[str]) -> Any:
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _say(found: Mapping[str, Any], path: Sequence[str], text: str = "{}", digits: int = 3) -> str:
    value = _at(found, path)
    return text.format(number(value, digits)) if is_number(value) else ""


def _share(found: Mapping[str, Any], path: Sequence[str]) -> str:
    value = _at(found, path)
    return percent(value) if is_number(value) else ""


def _drift(found: Mapping[str, Any]) -> str:
    ratio = _at(found, ("walk", "ratio"))
    return f"{decimals(ratio, 2)} (1 is pure noise)" if is_number(ratio) else ""


def _cosine(found: Mapping[str, Any]) -> str:
    cosine, expected = (_at(found, ("gradient", key)) for key in ("cosine", "expected"))
    if not is_number(cosine):
        return ""
    text = number(cosine, 3)
    return f"{text} ({number(expected, 3)} without noise and curvature)" if is_number(expected) else text


def _retained(found: Mapping[str, Any]) -> str:
    part = _at(found, ("retention", "difference"))
    value = part.get("value") if isinstance(part, Mapping) else None
    if not is_number(value):
        return ""
    ends = pair(part.get("ci"))
    interval = f" [{signed(ends[0], 3)}, {signed(ends[1], 3)}]" if ends else ""
    return f"{_at(found, ('retention', 'task'))} {signed(value, 3)}{interval}"
