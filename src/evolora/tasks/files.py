r"""The user's own data: JSON lines in three forms.

    {"prompt": "Q: 2 + 2?\nA:", "answer": "4"}
    {"prompt": "Once upon", "completion": " a time"}
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}

``prompt`` may also be a list of messages, and ``completion`` a list of one (TRL's conversational form).
``family`` and ``split`` are optional; every other column is kept and handed to reward functions. A
``completion`` is taken letter for letter. An ``answer`` to a text prompt is what the model should say:
where neither the prompt's end nor the answer's beginning is a space, one is put between them (not beside
scripts that do not use spaces), because that is how tokenizers expect a new word. An empty ``answer`` is
for rewards that need none.

Splits that the file does not name are made by the prompts' hashes: all three where no row has a split, the
missing ones out of train otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evolora.errors import TaskError
from evolora.tasks.jsonl import read_rows, split_in, text_of
from evolora.tasks.splits import check_size, divide, shuffled
from evolora.tasks.task import SPLITS, Example, Message, Prompt, Split, Task, answer_tokens, excerpt

READ = ("prompt", "answer", "completion", "messages", "family", "split")
RESERVED = ("prompts", "completions")
LONGEST = 512
UNSPACED = "\u2e80"  # the first of the CJK blocks; what lies above is written without spaces


def load_file(path: Path, sizes: dict[Split, int | None], seed: int) -> Task:
    """Reads a JSONL file as a task.

    Raises:
        TaskError: with file and line: bad JSON, a missing key, a wrong type, an unknown split, a prompt in
            two splits, a split with no prompt, more prompts asked for than there are.
    """
    table = Table(path)
    for where, row in read_rows(path):
        example = read_example(row, where, table)
        table.add(example, split_in(row, where), where)
    return table.task(sizes, seed, str(path), f"{len(table.examples)} prompts of {path.name}", str(path))


@dataclass
class Table:
    """Rows on their way to a task: duplicates found, splits filled.

    Attributes:
        path: the file, for messages.
        examples: prompt to example, in the order of the file.
        splits: prompt to the split that its row names, or None.
        places: prompt to ``file:line``.
        repeated: how many rows repeat a prompt of the same split.
        changed: how many of these had another answer.
        joined: how many answers got a space before them.
    """

    path: Path
    examples: dict[Prompt, Example] = field(default_factory=dict)
    splits: dict[Prompt, Split | None] = field(default_factory=dict)
    places: dict[Prompt, str] = field(default_factory=dict)
    repeated: int = 0
    changed: int = 0
    joined: int = 0

    def add(self, example: Example, split: Split | None, where: str) -> None:
        """Takes a row in; the first of equal prompts is kept.

        Raises:
            TaskError: the prompt stands in another split, or some rows name a split and others do not.
        """
        first = next(iter(self.places), None)
        if first is not None and (self.splits[first] is None) != (split is None):
            raise TaskError(
                f'this row has {"no" if split is None else "a"} "split", {self.places[first]} has '
                f"{'one' if split is None else 'none'}",
                where=where,
                mend="name the split of every row or of none",
            )
        prompt = example.prompt
        if prompt not in self.examples:
            self.examples[prompt], self.splits[prompt], self.places[prompt] = example, split, where
        elif self.splits[prompt] != split:
            raise TaskError(
                f"the prompt {excerpt(prompt)} stands in {split}, "
                f"and in {self.splits[prompt]} at {self.places[prompt]}",
                where=where,
                mend="remove one of the two, or the test would measure memory",
            )
        else:
            self.repeated += 1
            self.changed += self.examples[prompt].answer != example.answer

    def task(
        self, sizes: dict[Split, int | None], seed: int, name: str, description: str, source: str
    ) -> Task:
        """The task of all rows; the seed chooses where fewer are asked for, and orders the training prompts.

        Raises:
            TaskError: too few prompts.
        """
        parts = self._divided()
        chosen: dict[Split, tuple[Example, ...]] = {}
        for split in SPLITS:
            check_size(sizes[split], len(parts[split]), where=str(self.path), split=split)
            chosen[split] = tuple(shuffled(parts[split], f"{split}/{seed}")[: sizes[split]])
        longest = min(LONGEST, answer_tokens(list(self.examples.values())))
        return Task(
            name,
            chosen["train"],
            chosen["validation"],
            chosen["test"],
            max_new_tokens=longest,
            description=description,
            source=source,
            warnings=self.warnings(),
        )

    def warnings(self) -> tuple[str, ...]:
        """What was left out or changed, one line each."""
        lines = []
        if self.repeated:
            other = f", {self.changed} of them with another answer" if self.changed else ""
            lines.append(
                f"{self.path}: {self.repeated} rows repeat a prompt of their split and were left out{other}"
            )
        if self.joined:
            lines.append(
                f"{self.path}: a space was put between prompt and answer in {self.joined} rows; "
                'name the column "completion" to have it taken letter for letter'
            )
        return tuple(lines)

    def _divided(self) -> dict[Split, list[Example]]:
        parts: dict[Split, list[Example]] = {split: [] for split in SPLITS}
        for prompt, example in self.examples.items():
            parts[self.splits[prompt] or "train"].append(example)
        missing = [split for split in SPLITS if not parts[split]]
        if "train" in missing:
            raise TaskError(
                'no row has the split "train"',
                where=self.path,
                mend='add training rows, or leave "split" out of all rows',
            )
        if missing:
            open_splits = [split for split in SPLITS if split == "train" or split in missing]
            try:
                parts |= divide({example.text: example for example in parts["train"]}, open_splits)
            except TaskError as error:
                raise TaskError(error.what, where=self.path, mend=error.mend) from None
        return parts


def read_example(row: dict[str, Any], where: str, table: Table) -> Example:
    """The example of a row, in whichever of the forms it has.

    Raises:
        TaskError: none of the forms, a wrong type, an empty prompt, a column that would clash.
    """
    for name in RESERVED:
        if name in row:
            raise TaskError(
                f'a column may not be named "{name}"',
                where=where,
                mend="reward functions get this; rename it",
            )
    prompt, answer = _parts(row, where)
    if not (prompt if isinstance(prompt, tuple) else prompt.strip()):
        raise TaskError("the prompt is empty", where=where, mend="write one, or remove the row")
    if "answer" in row and "messages" not in row and isinstance(prompt, str) and _apart(prompt, answer):
        answer = f" {answer}"
        table.joined += 1
    family = text_of(row, "family", where) if row.get("family") is not None else "default"
    columns = {name: value for name, value in row.items() if name not in READ}
    return Example(prompt, answer, family, columns)


def _parts(row: dict[str, Any], where: str) -> tuple[Prompt, str]:
    if "messages" in row:
        messages = _messages(row["messages"], "messages", where)
        if messages[-1].role != "assistant":
            raise TaskError(
                f'the last message is from "{messages[-1].role}"',
                where=where,
                mend="end with the assistant's answer",
            )
        return messages[:-1], messages[-1].content
    if "prompt" not in row or not ("answer" in row or "completion" in row):
        names = ", ".join(f'"{name}"' for name in row) or "none"
        raise TaskError(
            f"the keys are {names}",
            where=where,
            mend='give "prompt" and "answer" (or "completion"), or chat "messages"',
        )
    chat = isinstance(row["prompt"], list)
    prompt = _messages(row["prompt"], "prompt", where) if chat else text_of(row, "prompt", where)
    if "answer" in row:
        return prompt, text_of(row, "answer", where)
    if isinstance(row["completion"], list):
        completion = _messages(row["completion"], "completion", where)
        if len(completion) > 1:
            raise TaskError(
                '"completion" has more than one message', where=where, mend="put the others into the prompt"
            )
        return prompt, completion[0].content
    return prompt, text_of(row, "completion", where)


def _messages(value: Any, key: str, where: str) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise TaskError(
            f'"{key}" is not a list of messages',
            where=where,
            mend='give [{"role": ..., "content": ...}, ...]',
        )
    return tuple(_message(item, f"{key}[{i}]", where) for i, item in enumerate(value))


def _message(item: Any, key: str, where: str) -> Message:
    if not isinstance(item, Mapping) or not all(isinstance(item.get(k), str) for k in ("role", "content")):
        raise TaskError(
            f'{key} has no text for "role" and "content"', where=where, mend="give both, as texts"
        )
    return Message(item["role"], item["content"])


def _apart(prompt: str, answer: str) -> bool:
    """Whether a space belongs between the two."""
    ends = prompt[-1], answer[:1]
    return bool(answer) and not any(end.isspace() or end >= UNSPACED for end in ends)
