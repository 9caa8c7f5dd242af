"""The family ``strings``: letters and words, transformed one by one."""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_lowercase, ascii_uppercase

from evolora.tasks.procedural import Subtask, arrangement, arrangements

WORDS = tuple(
    """apple arm bag ball band bank bear bed bell bird boat book box bread bridge cake car cat chair
    clock cloud coat coffee corn cow cup desk dog door dress drum duck ear egg eye farm fish flag flower
    foot fork frog garden gate girl glass gold grass hand hat hill home horse house ice island jacket
    juice key king kite knife lake lamp leaf leg letter lion milk mirror moon mouse mouth nail neck nest
    night nose ocean oil onion orange paint paper pen piano pig pillow plate queen rain ring river road
    rock rope rose salt sand school sea ship shirt shoe silver sky snow song spoon star stone street
    sugar sun table tail tea tent tiger tooth town train tree truck uncle valley van village voice wall
    watch water wheel wind window wolf wood yard zebra zoo""".split()
)
SHIFTED = dict(zip(ascii_lowercase, ascii_lowercase[1:] + ascii_lowercase[0], strict=True))


def _subtask(
    name: str, description: str, items: tuple[str, ...] | str, size: int, rule: Callable[[str], str]
) -> Subtask:
    def case(size: int, number: int) -> tuple[str, str]:
        chosen = arrangement(items, size, number)
        return " ".join(chosen), " ".join(map(rule, chosen))

    return Subtask(
        "strings", name, description, range(2, 11), size, lambda n: arrangements(len(items), n), case
    )


STRINGS = (
    _subtask("upper", "letters in upper case: upper: g j -> G J", ascii_lowercase, 4, str.upper),
    _subtask("lower", "letters in lower case: lower: G J -> g j", ascii_uppercase, 4, str.lower),
    _subtask("initials", "first letters: initials: dog king coffee -> d k c", WORDS, 3, lambda word: word[0]),
    _subtask(
        "shift", "the next letter, a after z: shift: b l d -> c m e", ascii_lowercase, 3, SHIFTED.__getitem__
    ),
)
