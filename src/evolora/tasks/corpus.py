"""Plain text to go on with: ``corpus:PATH``, passages of 48 words, of which the first 16 are the prompt.

The reward is the log-likelihood of the rest (``logprob``): language modelling. A passage is taken letter for
letter, line breaks included. Twenty passages in a row share a split, chosen by the hash of their text, so
that hardly a test passage has a neighbour that was trained on. Repeated prompts are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from evolora.errors import TaskError
from evolora.tasks.files import Table
from evolora.tasks.jsonl import read_text
from evolora.tasks.splits import divide
from evolora.tasks.task import Example, Split, Task

PROMPT, ANSWER, BLOCK = 16, 32, 20
DESCRIPTION = "passages of a plain text, to be gone on with"


def load_corpus(path: Path, sizes: dict[Split, int | None], seed: int) -> Task:
    """The task of a text file.

    Raises:
        TaskError: the file is missing, unreadable, not UTF-8, or too short for three splits.
    """
    words = re.findall(r"\s*\S+", read_text(path))
    width = PROMPT + ANSWER
    passages = [words[first : first + width] for first in range(0, len(words) - width + 1, width)]
    if len(passages) < 3:
        raise TaskError(
            f"{len(words)} words are {len(passages)} passages of {width}, and three splits need more",
            where=path,
            mend="give a longer text",
        )
    table, together = Table(path), min(BLOCK, len(passages) // 3)
    blocks = [passages[first : first + together] for first in range(0, len(passages), together)]
    for split, mine in divide({_text(list(chain(*block))): block for block in blocks}).items():
        for passage in (passage for block in mine for passage in block):
            prompt = _text(passage[:PROMPT]).lstrip()
            if prompt not in table.examples:
                table.add(Example(prompt, _text(passage[PROMPT:]), "corpus"), split, str(path))
    task = table.task(sizes, seed, f"corpus:{path}", DESCRIPTION, str(path))
    return replace(task, reward="logprob")


def _text(words: Sequence[str]) -> str:
    return "".join(words)
