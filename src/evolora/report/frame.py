"""The frame that every page has: its head, verdict, scripts, and the figures' data inside it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import resources
from typing import TYPE_CHECKING, Any

from evolora.report.figure_csv import csv_of
from evolora.report.figures import Figure
from evolora.version import __version__

if TYPE_CHECKING:
    from markupsafe import Markup


def render_page(template: str, figures: Iterable[Figure | None], **values: Any) -> str:
    """The HTML text of a page that extends ``frame.html.j2``; it asks no other place for anything.

    Args:
        template: its file in ``templates/``.
        figures: what may be drawn; None is left out. The template finds them by their keys.
        values: whatever else the template names; ``name``, ``verdict`` and ``facts`` are the frame's.
    """
    import jinja2
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawn = {figure.key: figure for figure in figures if figure is not None}
    return environment.get_template(template).render(
        version=__version__,
        figures=drawn,
        figure_data=Markup(_script_json({key: _data(figure) for key, figure in drawn.items()})),
        asset=_asset,
        plotly=Markup(get_plotlyjs()) if drawn else "",
        **values,
    )


def _asset(name: str) -> Markup:
    from markupsafe import Markup

    return Markup(resources.files("evolora.report").joinpath("templates", name).read_text(encoding="utf-8"))


def _data(figure: Figure) -> dict[str, Any]:
    csv = {name: csv_of(view, figure.tables.get(name)) for name, view in figure.views.items()}
    return {"height": figure.height, "views": figure.views, "csv": csv}


def _script_json(value: Any) -> str:
    """JSON that no text inside it can end the script element of (or start a comment in)."""
    text = json.dumps(value, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
