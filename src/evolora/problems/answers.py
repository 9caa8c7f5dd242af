"""Prompts and answers as one base reads and writes them: how long answers are, and which it cannot say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evolora.errors import TaskError
from evolora.tasks.task import SPLITS, Example, Task, excerpt

if TYPE_CHECKING:
    from evolora.engine import Base

SPARE = 2  # a model may split an answer a little otherwise than its tokenizer


def render(base: Base, examples: Sequence[Example]) -> list[str]:
    """The prompts as the model reads them: texts as they are, chats through the base's template."""
    prompts = [example.prompt for example in examples]
    return [p if isinstance(p, str) else base.render([m.as_dict() for m in p]) for p in prompts]


def answer_length(base: Base, task: Task) -> int:
    """How many tokens a completion may have, so that every answer of the task can be said whole.

    The task's own guess, made without a tokenizer, or more where the base's tokenizer needs more (digits,
    emoji and single characters are a token each in many). Beyond the guess it grows only as far as the
    longest prompt leaves room in the model.

    Args:
        base: whose tokenizer counts.
        task: answers of all splits count, each with its end; empty ones do not.

    Raises:
        InputError: the tokenizer makes tokens that the model does not know.
    """
    examples = [example for split in SPLITS for example in task.split(split)]
    answers = [example.answer for example in examples if example.answer]
    longest = max(map(len, base.text.encode(answers, starts=False)), default=0) + 1 + SPARE
    if longest <= task.max_new_tokens:
        return task.max_new_tokens
    if base.max_length is not None:
        prompts = base.text.encode(render(base, examples), starts=True)
        longest = min(longest, base.max_length - max(map(len, prompts)))
    return max(task.max_new_tokens, longest)


def refuse_unsayable(
    base: Base,
    examples: Sequence[Example],
    tokens: Sequence[Sequence[int]],
    *,
    stop: str | None,
    most: int,
    where: str,
) -> None:
    """Refuses answers that no completion can equal, though teacher forcing would find them right.

    Args:
        base: what generates.
        examples: P examples.
        tokens: their answers as token ids, the end appended.
        stop: what ends an answer beside the end of text.
        most: the longest completion in tokens.
        where: the task and split, for the message.

    Raises:
        TaskError: an answer goes on after ``stop`` or after a token that ends a text, or has more than
            ``most`` tokens; the prompt is named.
    """
    ends = set(base.end_tokens)
    for example, ids in zip(examples, tokens, strict=True):
        answer, body = example.answer, ids[:-1]
        if stop is not None and answer.split(stop)[0].strip() != answer.strip():
            reason = f"it holds {stop!r}, where answers end"
            mend = "choose another stop, or cut the answer there"
        elif ends.intersection(body):
            text = base.tokenizer.decode([next(i for i in body if i in ends)])
            reason, mend = f"it holds {text!r}, which ends a text", "take that out of the answer"
        elif len(body) > most:
            reason = f"it has {len(body)} tokens, and completions end after {most}"
            mend = "shorten it, or give a larger max_new_tokens"
        else:
            continue
        raise TaskError(
            f"the answer to {excerpt(example.prompt)} can never be generated: {reason}",
            where=where,
            mend=mend,
        )
