"""The page of a study: one ``report.html`` beside its record that opens offline and can be sent as it is."""

from __future__ import annotations

from pathlib import Path

from evolora.report import study_tables as tables
from evolora.report.frame import render_page
from evolora.report.study_claims import claim_figure
from evolora.report.study_curves import curve_figure
from evolora.report.study_data import StudyData, listed, mapping, read_study
from evolora.report.study_measures import measure_figures
from evolora.report.study_verdict import judged, study_verdict
from evolora.report.tables import fact_table
from evolora.report.units import number
from evolora.runs.atomic import write_atomically


def write_study_report(source: str | Path) -> Path:
    """Writes the page of a study that was run, atomically.

    Args:
        source: its folder, which gets ``report.html``; or a copy of its record, which gets a page beside it.

    Returns:
        The page's path.

    Raises:
        RunError: there is no finished study, its record is damaged, or the page cannot be written.
    """
    data = read_study(source)
    page = data.path.with_name("report.html") if Path(source).is_dir() else data.path.with_suffix(".html")
    return write_atomically(page, render_study(data))


def render_study(data: StudyData) -> str:
    """The HTML text of a study's page."""
    claims, measures = judged(data), measure_figures(data)
    return render_page(
        "study.html.j2",
        (claim_figure(claims), *measures, curve_figure(data)),
        name=data.record["study"],
        preset=data.record["preset"],
        verdict=study_verdict(data),
        facts=_facts(data),
        claims=claims,
        measures=[figure.key for figure in measures],
        arms=tables.arm_table(data),
        cells=tables.cell_table(data),
        settings=tables.setting_table(data),
        spending=tables.spending_table(data),
        digest=data.plan.get("digest"),
        plan=fact_table(_plan(data)),
        provenance=fact_table({"provenance": mapping(data.record.get("provenance"))}),
    )


def _plan(data: StudyData) -> dict[str, object]:
    """What the other tables do not tell of the plan."""
    plan = data.plan
    names = {"revision": "revision of the study", "seeds": "reported seeds", "tuning": "tuning seeds"}
    lists = {key: [str(seed) for seed in listed(plan.get(key))] for key in ("seeds", "tuning")}
    told = {name: lists.get(key, plan[key]) for key, name in names.items() if key in plan}
    return told | {"settings": mapping(plan.get("settings"))}


def _facts(data: StudyData) -> list[tuple[str, str]]:
    return [
        ("Preset", data.record["preset"]),
        ("Arms", number(len(data.arms))),
        ("Seeds", number(len(data.seeds))),
        ("Cells", number(len(data.cells))),
        ("Plan digest", str(data.plan.get("digest", ""))),
    ]
