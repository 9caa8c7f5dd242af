"""The page of a run: one ``report.html`` that opens offline and can be sent as it is."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from evolora.report import comparison, diagnostics, figures, tables
from evolora.report.diagnostic_table import absent_table, diagnostic_table
from evolora.report.recipes import recipes
from evolora.report.run_data import RunData, read_run
from evolora.report.units import NOTHING, duration, flops, number
from evolora.report.verdict import give_verdict
from evolora.runs.atomic import write_atomically
from evolora.version import __version__


def write_report(run_folder: str | Path) -> Path:
    """Writes ``report.html`` into a run folder, atomically; the run may be unfinished, stopped or failed.

    The page holds everything it needs (styles, plotly.js, data); it asks no other place for anything.

    Returns:
        The page's path.

    Raises:
        RunError: it is no run folder, one of its files is damaged, or the page cannot be written.
    """
    data = read_run(run_folder)
    return write_atomically(data.contents.report_path, render(data))


def render(data: RunData) -> str:
    """The HTML text of a run's page."""
    import jinja2
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    def asset(name: str) -> Markup:
        return Markup(
            resources.files("evolora.report").joinpath("templates", name).read_text(encoding="utf-8")
        )

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    share = comparison.is_share(data)
    rows = comparison.comparison_rows(data)
    drawn = {
        figure.key: figure
        for figure in (
            figures.reward_figure(data.journal),
            figures.validation_figure(*comparison.looks_of(data)),
            comparison.comparison_figure(rows, share),
            figures.norm_figure(data.journal),
            *diagnostics.diagnostic_figures(data),
        )
        if figure is not None
    }
    samples, more_samples = tables.samples(data)
    columns, steps, stride = tables.step_table(data.journal)
    return environment.get_template("run.html.j2").render(
        version=__version__,
        name=data.name,
        status=str(data.record["status"]).partition(":")[0],
        verdict=give_verdict(data),
        facts=_facts(data),
        figures=drawn,
        figure_data=Markup(_script_json({key: asdict(figure) for key, figure in drawn.items()})),
        comparison=comparison.comparison_table(rows, share),
        share=share,
        samples=samples,
        more_samples=more_samples,
        columns=columns,
        steps=steps,
        stride=stride,
        diagnostics=diagnostic_table(data.diagnostics or {}),
        absent=absent_table(data),
        cost=tables.cost_table(data),
        provenance=tables.fact_table(data.record),
        config_text=data.config_text,
        recipes=recipes(data),
        css=asset("page.css"),
        script=asset("figures.js"),
        plotly=Markup(get_plotlyjs()) if drawn else "",
    )


def _facts(data: RunData) -> list[tuple[str, str]]:
    ledger = data.ledger
    done = len(data.journal)
    planned = data.planned_steps
    facts: list[tuple[str, Any]] = [
        ("Base", data.find("model", "base_name")),
        ("Task", data.find("task")),
        ("Reward", data.find("reward")),
        ("Method", data.find("method")),
        ("Steps", f"{number(done)} of {number(planned)}" if planned and planned != done else number(done)),
        ("Seed", data.find("seed")),
        ("Time", duration(ledger.get("seconds"))),
        ("Forward work", flops(ledger.get("forward_flops"))),
    ]
    stopped = data.find("stopped")
    if isinstance(stopped, str):
        facts.append(("Ended by", stopped))
    return [(name, str(value)) for name, value in facts if value is not None and value != NOTHING]


def _script_json(value: Any) -> str:
    """JSON that no text inside it can end the script element of (or start a comment in)."""
    text = json.dumps(value, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
