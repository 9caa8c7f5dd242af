"""How each arm of a study is drawn: a colour, a dash and a marker, so that none is told by colour alone."""

from __future__ import annotations

from dataclasses import dataclass

COLORS = 10  # --arm0 to --arm9 of page.css
_DASHES = ("solid", "8px,4px", "2px,3px", "9px,3px,2px,3px", "14px,4px", "4px,4px")  # told apart in a legend
_SYMBOLS = (
    *("circle", "diamond", "square", "triangle-up", "x"),
    *("triangle-down", "cross", "pentagon", "star", "hexagram"),
)


@dataclass(frozen=True)
class Look:
    """How an arm is drawn wherever it is drawn.

    Attributes:
        color: a name that the page fills in.
        dash: of its lines.
        symbol: of its markers.
    """

    color: str
    dash: str
    symbol: str


def look_of(place: int) -> Look:
    """The look of an arm by its place in the plan; colours come again after ten, with other dashes."""
    return Look(f"$arm{place % COLORS}", _DASHES[place % len(_DASHES)], _SYMBOLS[place % len(_SYMBOLS)])
