r"""The sentiment of sentences: ``Review: ...\nSentiment:``, answered `` positive`` or `` negative``.

Data: SST-2 (Socher et al., EMNLP 2013, as in GLUE) through the ``datasets`` library, or a local JSONL file
with the same columns ``sentence`` and ``label`` (1 = positive, 0 = negative), and ``split``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from evolora.errors import TaskError
from evolora.tasks.files import Table
from evolora.tasks.jsonl import read_rows, split_in, text_of
from evolora.tasks.splits import hashed
from evolora.tasks.task import Example, Split, Task

HUB_NAME = "stanfordnlp/sst2"
LABELS = {0: " negative", 1: " positive", "0": " negative", "1": " positive"}
LABELS |= {"negative": " negative", "positive": " positive"}
DESCRIPTION = "sentences of film reviews -> positive or negative"
MAX_NEW_TOKENS = 4
HELD_OUT = 20  # one training sentence of SST-2 in so many becomes validation


def load_sentiment(path: Path | None, sizes: dict[Split, int | None], seed: int) -> Task:
    """The task, from a file (``sentiment:PATH``) or from the Hub (``sentiment``).

    Raises:
        TaskError: the file is wrong, or ``datasets`` or the network is missing.
    """
    if path is None:
        table = Table(Path(HUB_NAME))
        for where, row, split in _hub_rows():
            table.add(_example(row, where), split, where)
        task = table.task(sizes, seed, "sentiment", DESCRIPTION, f"SST-2 ({HUB_NAME} on the Hub)")
    else:
        table = Table(path)
        for where, row in read_rows(path):
            table.add(_example(row, where), split_in(row, where), where)
        task = table.task(sizes, seed, f"sentiment:{path}", DESCRIPTION, str(path))
    return replace(task, max_new_tokens=MAX_NEW_TOKENS, stop="\n")


def _example(row: dict[str, Any], where: str) -> Example:
    sentence = text_of(row, "sentence", where).strip()
    if not sentence:
        raise TaskError("the sentence is empty", where=where, mend="write one, or remove the row")
    label = row.get("label")
    if isinstance(label, bool) or not isinstance(label, int | str) or label not in LABELS:
        raise TaskError(f"the label is {label!r}", where=where, mend='give 1 or "positive", 0 or "negative"')
    columns = {k: v for k, v in row.items() if k not in ("label", "split")}
    return Example(f"Review: {sentence}\nSentiment:", LABELS[label], "sentiment", columns)


def _hub_rows() -> Iterator[tuple[str, dict[str, Any], Split]]:
    """SST-2's rows. Its own test has no labels: its validation is our test, ours comes out of its train.

    A training phrase that is also a test sentence is left out.
    """
    try:
        from datasets import load_dataset
    except ImportError:
        raise TaskError(
            'the library "datasets" is not installed',
            where="sentiment",
            mend="pip install 'evolora[datasets]', or name a file of your own: sentiment:PATH.jsonl",
        ) from None
    try:
        data = load_dataset(HUB_NAME)
    except Exception as error:  # the library raises many kinds: no network, no such set, a damaged cache
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        raise TaskError(
            f"{HUB_NAME} cannot be loaded ({reason})",
            where="sentiment",
            mend="connect to the network, or name a file of your own: sentiment:PATH.jsonl",
        ) from None
    tested = {row["sentence"].strip() for row in data["validation"]}
    for number, row in enumerate(data["validation"]):
        yield f"{HUB_NAME} validation:{number}", dict(row), "test"
    for number, row in enumerate(data["train"]):
        sentence = row["sentence"].strip()
        if sentence and sentence not in tested:
            held = hashed("evolora/split", sentence) % HELD_OUT == 0
            yield f"{HUB_NAME} train:{number}", dict(row), "validation" if held else "train"
