"""What is to be learned: prompts, answers, families, and three splits that share no prompt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from evolora.errors import TaskError

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True)
class Message:
    """One turn of a chat.

    Attributes:
        role: ``system``, ``user`` or ``assistant`` (or what else the base's chat template knows).
        content: the text.
    """

    role: str
    content: str

    def as_dict(self) -> dict[str, str]:
        """The form that chat templates and TRL use."""
        return {"role": self.role, "content": self.content}


Prompt = str | tuple[Message, ...]


def excerpt(prompt: Prompt, length: int = 60) -> str:
    """The prompt on one line, cut to ``length`` characters, in quotation marks: for messages."""
    text = prompt if isinstance(prompt, str) else " / ".join(f"{m.role}: {m.content}" for m in prompt)
    text = " ".join(text.split())
    return f'"{text if len(text) <= length else text[: length - 3] + "..."}"'


@dataclass(frozen=True)
class Example:
    """One prompt and the answer that is wanted.

    Attributes:
        prompt: the raw text, or the messages of a chat (rendered by the base's template later).
        answer: exactly the text that follows the prompt, a leading space included where there is one.
            Empty where only the user's own reward function judges.
        family: the group that results are reported by.
        columns: what else the data says of this prompt; handed to reward functions.
    """

    prompt: Prompt
    answer: str
    family: str = "default"
    columns: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def text(self) -> str:
        """The prompt as one string that identifies it (not what the model reads in a chat)."""
        if isinstance(self.prompt, str):
            return self.prompt
        return json.dumps([[m.role, m.content] for m in self.prompt], ensure_ascii=False)


@dataclass(frozen=True)
class Task:
    """Three disjoint splits of examples, and how they are asked and judged.

    Attributes:
        name: the specification that loads it again.
        train: what a method may learn from.
        validation: what choices are made on.
        test: what is reported; nothing is ever chosen on it.
        max_new_tokens: how long an answer may become when it is generated.
        reward: the specification of the reward that judges by default.
        description: one line.
        source: where the data come from, and their licence where it is not the package's.
        warnings: what was mended or left out while the data were read, one line each.
        stop: what ends an answer beside the end of text: a line break where answers are one line.

    Raises:
        TaskError: a split is empty, or a prompt stands in two splits.
    """

    name: str
    train: tuple[Example, ...]
    validation: tuple[Example, ...]
    test: tuple[Example, ...]
    max_new_tokens: int
    reward: str = "exact"
    description: str = ""
    source: str = ""
    warnings: tuple[str, ...] = ()
    stop: str | None = None

    def __post_init__(self) -> None:
        home: dict[Prompt, Split] = {}
        for split in SPLITS:
            examples = self.split(split)
            if not examples:
                raise TaskError(
                    f"the split {split} is empty",
                    where=self.name,
                    mend="every split needs at least one prompt",
                )
            for example in examples:
                other = home.setdefault(example.prompt, split)
                if other != split:
                    raise TaskError(
                        f"the prompt {excerpt(example.prompt)} stands in both {other} and {split}",
                        where=self.name,
                        mend="remove it from one of them, or the test would measure memory",
                    )
        if self.max_new_tokens < 1:
            raise TaskError(
                f"max_new_tokens is {self.max_new_tokens}", where=self.name, mend="give 1 or more"
            )

    def __repr__(self) -> str:
        sizes = " + ".join(str(len(self.split(split))) for split in SPLITS)
        return f"Task({self.name!r}, {sizes} prompts)"

    def split(self, name: str) -> tuple[Example, ...]:
        """The examples of ``train``, ``validation`` or ``test``.

        Raises:
            TaskError: there is no such split.
        """
        if name not in SPLITS:
            raise TaskError(
                f'no split is named "{name}"', where=self.name, mend=f"use one of {', '.join(SPLITS)}"
            )
        examples: tuple[Example, ...] = getattr(self, name)
        return examples

    @property
    def families(self) -> tuple[str, ...]:
        """The families of all splits, sorted."""
        return tuple(sorted({example.family for split in SPLITS for example in self.split(split)}))

    @property
    def fingerprint(self) -> str:
        """A hash of all prompts, answers, families and columns in order (16 hex digits)."""
        digest = hashlib.blake2b(digest_size=8)
        for split in SPLITS:
            for example in self.split(split):
                parts = [split, example.text, example.answer, example.family, dict(example.columns)]
                digest.update(json.dumps(parts, default=str, sort_keys=True).encode())
        return digest.hexdigest()


def answer_tokens(examples: Sequence[Example]) -> int:
    """A length in tokens that the longest answer fits in, when no tokenizer is at hand.

    Every second byte a token and eight to spare: twice what English text needs, enough for short answers
    spelt out character by character.
    """
    return max(len(example.answer.encode()) for example in examples) // 2 + 8
