"""Procedural tasks: an operation on letters, words, digits or a text, answered by rule.

Every operation numbers its prompts 0 .. space - 1 without repetition, so different numbers are different
prompts: nothing is drawn twice, nothing is drawn until it fits, and no list of a large space is ever made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evolora.errors import TaskError
from evolora.tasks.splits import apportion, capacities, check_size, permuted, shuffled
from evolora.tasks.task import SPLITS, Example, Split

DEFAULT_SIZES: dict[Split, int] = {"train": 1000, "validation": 200, "test": 200}


@dataclass(frozen=True)
class Subtask:
    """One operation.

    Attributes:
        family: ``lists``, ``strings``, ``arith`` or ``retrieval``.
        name: the word before the colon.
        description: one line.
        sizes: the sizes it comes in (how many letters, words or digits the arguments have).
        size: the size by default.
        space: size to the number of different prompts.
        case: (size, number below the space) to (arguments, answer), both without outer spaces.
        form: of the prompt.
        stop: what ends an answer beside the end of text.
    """

    family: str
    name: str
    description: str
    sizes: range
    size: int
    space: Callable[[int], int]
    case: Callable[[int, int], tuple[str, str]]
    form: str = "{name}: {arguments} ->"
    stop: str | None = None

    def example(self, size: int, number: int) -> Example:
        """The example of a number: the prompt (``op: args ->``) and, after a space, the answer."""
        arguments, answer = self.case(size, number)
        columns = {"subtask": self.name, "size": size}
        prompt = self.form.format(name=self.name, arguments=arguments)
        return Example(prompt, f" {answer}", self.family, columns)

    def sized(self, size: int | None) -> Sized:
        """The operation at one size.

        Raises:
            TaskError: it does not come in this size.
        """
        if size is not None and size not in self.sizes:
            raise TaskError(
                f"size {size} does not exist",
                where=f"{self.family}/{self.name}",
                mend=f"choose one from {self.sizes.start} to {self.sizes.stop - 1}",
            )
        return Sized(self, self.size if size is None else size)


@dataclass(frozen=True)
class Sized:
    """An operation at one size: a numbered, finite set of prompts."""

    subtask: Subtask
    size: int

    @property
    def name(self) -> str:
        """``family/subtask:size``."""
        return f"{self.subtask.family}/{self.subtask.name}:{self.size}"

    @property
    def space(self) -> int:
        """How many different prompts there are."""
        return self.subtask.space(self.size)

    def draw(self, split: Split, count: int, seed: int) -> list[Example]:
        """``count`` different examples of a split; the seed chooses which, never from another split."""
        rooms = capacities(self.space)
        start = sum(rooms[before] for before in SPLITS[: SPLITS.index(split)])
        places = (start + permuted(i, rooms[split], f"{self.name}/{split}/{seed}") for i in range(count))
        return [self.subtask.example(self.size, permuted(place, self.space, self.name)) for place in places]


def draw_splits(
    parts: Sequence[Sized], sizes: dict[Split, int | None], *, seed: int, where: str
) -> dict[Split, tuple[Example, ...]]:
    """Examples of all parts, evenly shared as far as their prompt spaces reach, mixed in a seeded order.

    Args:
        parts: operations at their sizes.
        sizes: how many prompts each split gets in all; None takes the default, or the whole space if smaller.
        seed: chooses and orders.
        where: the task's name, for messages.

    Raises:
        TaskError: more prompts are asked for than the splits have.
    """
    drawn: dict[Split, tuple[Example, ...]] = {}
    for split in SPLITS:
        rooms = [capacities(part.space)[split] for part in parts]
        size = sizes[split]
        check_size(size, sum(rooms), where=where, split=split)
        counts = apportion(min(DEFAULT_SIZES[split], sum(rooms)) if size is None else size, rooms)
        examples = [e for part, n in zip(parts, counts, strict=True) for e in part.draw(split, n, seed)]
        drawn[split] = tuple(shuffled(examples, f"{where}/{split}/{seed}"))
    return drawn


def arrangement(items: Sequence[str], size: int, number: int) -> list[str]:
    """Arrangement ``number`` of ``size`` different items, of ``len(items)! / (len(items) - size)!``."""
    left = list(items)
    chosen = []
    for _ in range(size):
        number, place = divmod(number, len(left))
        chosen.append(left.pop(place))
    return chosen


def arrangements(items: int, size: int) -> int:
    """How many arrangements of ``size`` different items there are."""
    count = 1
    for taken in range(size):
        count *= items - taken
    return count
