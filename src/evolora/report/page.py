"""The page of a run: one ``report.html`` that opens offline and can be sent as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evolora.report import comparison, diagnostics, figures, tables
from evolora.report.diagnostic_table import absent_table, diagnostic_table
from evolora.report.frame import render_page
from evolora.report.recipes import recipes
from evolora.report.run_data import RunData, read_run
from evolora.report.units import NOTHING, duration, flops, number
from evolora.report.verdict import give_verdict
from evolora.runs.atomic import write_atomically


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
    share = comparison.is_share(data)
    rows = comparison.comparison_rows(data)
    samples, more_samples = tables.samples(data)
    columns, steps, stride = tables.step_table(data.journal)
    return render_page(
        "run.html.j2",
        (
            figures.reward_figure(data.journal),
            figures.validation_figure(*comparison.looks_of(data)),
            comparison.comparison_figure(rows, share),
            figures.norm_figure(data.journal),
            *diagnostics.diagnostic_figures(data),
        ),
        name=data.name,
        status=str(data.record["status"]).partition(":")[0],
        verdict=give_verdict(data),
        facts=_facts(data),
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
