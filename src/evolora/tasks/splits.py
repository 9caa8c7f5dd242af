"""Disjoint splits: which split a prompt belongs to never depends on the seed.

The seed chooses among the prompts of a split and orders them. So a test prompt under one seed is never a
training prompt under another: an adapter trained with seed 1 can be measured on the task loaded with seed 2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

from evolora.errors import TaskError
from evolora.tasks.task import SPLITS, Split

T = TypeVar("T")

SHARES: dict[Split, float] = {"train": 0.6, "validation": 0.2, "test": 0.2}


def hashed(key: str, text: str) -> int:
    """64 bits that depend on ``key`` and ``text`` alone, on every machine."""
    name = hashlib.blake2b(key.encode(), digest_size=32).digest()
    return int.from_bytes(hashlib.blake2b(text.encode(), key=name, digest_size=8).digest(), "little")


def permuted(index: int, count: int, key: str) -> int:
    """The place of ``index`` in a keyed permutation of ``range(count)``, without a list of it.

    Four rounds of a balanced Feistel network on the smallest even number of bits that holds ``count``, walked
    along its cycle until it is inside the range again (Black and Rogaway, CT-RSA 2002).
    """
    if not 0 <= index < count:
        raise IndexError(f"{index} is not in range({count})")
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for turn in range(4):
            left, right = right, left ^ (hashed(key, f"{turn}/{right}") & mask)
        index = left << half | right
        if index < count:
            return index


def shuffled(items: Sequence[T], key: str) -> list[T]:
    """The items in an order that depends on ``key`` and their number alone."""
    return [items[permuted(i, len(items), key)] for i in range(len(items))]


def capacities(space: int, shares: Mapping[Split, float] = SHARES) -> dict[Split, int]:
    """How many of ``space`` prompts each split may use: its share, train what is left, none of them empty.

    Raises:
        TaskError: there are fewer prompts than splits.
    """
    if space < len(SPLITS):
        raise TaskError(
            f"{space} different prompts cannot fill {len(SPLITS)} splits",
            mend="give at least one prompt a split",
        )
    validation = max(1, int(space * shares["validation"]))
    test = max(1, int(space * shares["test"]))
    return {"train": space - validation - test, "validation": validation, "test": test}


def apportion(total: int, rooms: Sequence[int]) -> list[int]:
    """Shares ``total`` as evenly as ``rooms`` (the most each may take) allow.

    Raises:
        TaskError: ``total`` is larger than all the rooms together.
    """
    if total > sum(rooms):
        raise TaskError(
            f"{total} prompts asked for, {sum(rooms)} there are", mend=f"ask for {sum(rooms)} or fewer"
        )
    given = [0] * len(rooms)
    smallest_first = sorted(range(len(rooms)), key=lambda i: (rooms[i], -i))
    for left, i in zip(range(len(rooms), 0, -1), smallest_first, strict=True):
        given[i] = min(rooms[i], total // left)
        total -= given[i]
    return given


def split_of(text: str, shares: Mapping[Split, float] = SHARES) -> Split:
    """The split of a prompt, by its hash alone: adding prompts to a file never moves the others."""
    place = hashed("evolora/split", text) / 2**64
    if place < shares["test"]:
        return "test"
    return "validation" if place < shares["test"] + shares["validation"] else "train"


def divide(
    items: Mapping[str, T], splits: Sequence[Split] = SPLITS, shares: Mapping[Split, float] = SHARES
) -> dict[Split, list[T]]:
    """Divides items, named by their prompt's text, among ``splits`` (in proportion to their shares).

    Each prompt's hash decides. Where this leaves a split empty (few prompts), it gets one prompt
    of the fullest.

    Raises:
        TaskError: there are fewer prompts than splits.
    """
    if len(items) < len(splits):
        raise TaskError(
            f"{len(items)} different prompts cannot fill {', '.join(splits)}",
            mend="give at least one prompt a split",
        )
    whole = sum(shares[split] for split in splits)
    scaled = {split: shares[split] / whole if split in splits else 0.0 for split in SPLITS}
    order = sorted(items, key=lambda text: hashed("evolora/split", text))
    names: dict[Split, list[str]] = {split: [] for split in SPLITS if split in splits}
    for text in order:
        names[split_of(text, scaled)].append(text)
    for mine in names.values():
        if not mine:
            mine.append(max(names.values(), key=len).pop())
    return {split: [items[text] for text in texts] for split, texts in names.items()}


def check_size(size: int | None, room: int, *, where: str, split: Split) -> None:
    """Refuses a split size that is not positive or exceeds the ``room`` there is.

    Raises:
        TaskError: as said.
    """
    if size is not None and size < 1:
        raise TaskError(f"{size} {split} prompts asked for", where=where, mend="ask for 1 or more")
    if size is not None and size > room:
        raise TaskError(
            f"{size} {split} prompts asked for, but the split has {room}",
            where=where,
            mend=f"ask for at most {room}",
        )


def balanced(groups: Mapping[str, Sequence[T]], key: str) -> list[T]:
    """All items, each group in a keyed order, interleaved: every beginning holds the groups in proportion."""
    placed = [
        ((place + 0.5) / len(items), hashed(key, name), item)
        for name, items in groups.items()
        for place, item in enumerate(shuffled(items, f"{key}/{name}"))
    ]
    return [item for _, _, item in sorted(placed, key=lambda entry: entry[:2])]
