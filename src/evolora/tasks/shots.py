"""Solved examples in front of every prompt: what a base is shown before it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from evolora.errors import TaskError
from evolora.tasks.task import SPLITS, Example, Message, Prompt, Task

LINE = "\n"


def with_shots(task: Task, count: int) -> Task:
    r"""The task with solved training prompts in front of every prompt; these leave the training split.

    Texts become ``prompt answer`` line by line, and a line break ends an answer unless the task says what
    does. Chats get the examples as turns of user and assistant, after any system message.

    Args:
        task: prompts all of one kind, texts or chats.
        count: how many, the first of the (seeded) training split; 0 changes nothing.

    Raises:
        TaskError: a negative count, too few training prompts, an example without an answer or with a line
            break in it, or texts and chats mixed.
    """
    if count == 0:
        return task
    if not 0 < count < len(task.train):
        raise TaskError(
            f"{count} solved examples of {len(task.train)} training prompts",
            where=task.name,
            mend=f"choose 0 to {len(task.train) - 1} shots",
        )
    shown, stop = task.train[:count], task.stop or LINE
    for example in shown:
        if not example.answer.strip() or (isinstance(example.prompt, str) and stop in example.answer):
            raise TaskError(
                f"the answer {example.answer!r} cannot be shown as a solved example",
                where=task.name,
                mend="shots need one-line answers: leave --shots away",
            )
    kinds = {isinstance(e.prompt, str) for split in SPLITS for e in task.split(split)}
    if len(kinds) > 1:
        raise TaskError("texts and chats are mixed", where=task.name, mend="shots need prompts of one kind")
    text = kinds == {True}
    splits = {split: tuple(_led(e, shown, stop) for e in task.split(split)) for split in SPLITS}
    return replace(
        task,
        train=splits["train"][count:],
        validation=splits["validation"],
        test=splits["test"],
        stop=stop if text else task.stop,
    )


def _led(example: Example, shown: Sequence[Example], stop: str) -> Example:
    return replace(example, prompt=_prompt(example.prompt, shown, stop))


def _prompt(prompt: Prompt, shown: Sequence[Example], stop: str) -> Prompt:
    if isinstance(prompt, str):
        return "".join(f"{e.prompt}{e.answer}{stop}" for e in shown) + prompt
    system = [m for m in prompt if m.role == "system"]
    turns: list[Message] = []
    for example in shown:
        assert not isinstance(example.prompt, str)
        turns += [m for m in example.prompt if m.role != "system"]
        turns.append(Message("assistant", example.answer.strip()))
    return (*system, *turns, *(m for m in prompt if m.role != "system"))
