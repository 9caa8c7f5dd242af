"""The family ``lists``: short lists of different letters, rearranged."""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_lowercase

from evolora.tasks.procedural import Subtask, arrangement, arrangements


def _subtask(name: str, description: str, rule: Callable[[list[str]], list[str]]) -> Subtask:
    def case(size: int, number: int) -> tuple[str, str]:
        letters = arrangement(ascii_lowercase, size, number)
        return " ".join(letters), " ".join(rule(letters))

    return Subtask("lists", name, description, range(2, 11), 4, lambda size: arrangements(26, size), case)


LISTS = (
    _subtask("sort", "letters into alphabetical order: sort: d b a -> a b d", sorted),
    _subtask("reverse", "letters in reverse order: reverse: c y s -> s y c", lambda letters: letters[::-1]),
    _subtask("rotate", "the first letter to the end: rotate: c y s -> y s c", lambda ls: ls[1:] + ls[:1]),
    _subtask("last", "the last letter: last: c y s -> s", lambda letters: letters[-1:]),
)
