"""Texts as tokens: prompts, answers after their prompts, and what ends an answer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING

from evolora.engine.batches import refuse_unusable
from evolora.errors import InputError

if TYPE_CHECKING:
    from evolora.engine.base import Base


class Text:
    """Turns texts into the tokens of one base."""

    def __init__(self, base: Base) -> None:
        self.base = base
        self._stop_tokens: dict[str, list[tuple[int, str]]] = {}

    def endings(self, stop: str | None) -> tuple[int, ...]:
        """Tokens that end an answer: end of text, and each that has nothing but blanks before ``stop``.

        The first is the one appended to answers that are scored.

        Raises:
            InputError: ``stop`` is empty, or no single token of this tokenizer.
        """
        if stop is None:
            return self.base.end_tokens
        texts = self._containing(stop)
        alone = [i for i, text in texts if text == stop]
        blank_before = [i for i, text in texts if not text.split(stop)[0].strip()]
        if not alone:
            raise InputError(
                f"{stop!r} is no single token of {self.base.name}: answers that end with it cannot be scored",
                where="stop",
                mend="use a reward of the completion, or another stop",
            )
        return tuple(dict.fromkeys([*alone, *blank_before, *self.base.end_tokens]))

    def stops(self, stop: str | None) -> tuple[int, ...]:
        """Tokens after which a completion is over: end of text, and every token that contains ``stop``."""
        if stop is None:
            return self.base.end_tokens
        return (*self.base.end_tokens, *(i for i, _ in self._containing(stop)))

    def completion(self, tokens: Sequence[int], stop: str | None = None) -> str:
        """The text of generated tokens, without the end of text or ``stop`` and what follows it."""
        kept = list(takewhile(lambda token: token not in self.base.end_tokens, tokens))
        text: str = self.base.tokenizer.decode(
            kept, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text if stop is None else text.split(stop)[0]

    def through(self, tokens: Sequence[int], stop: str | None) -> list[int]:
        """Generated tokens up to the first with which ``stop`` is complete: those that made the text."""
        if stop is None or stop not in self.completion(tokens):
            return list(tokens)
        first = bisect_left(range(len(tokens)), True, key=lambda n: stop in self.completion(tokens[: n + 1]))
        return list(tokens[: first + 1])

    def _containing(self, stop: str) -> list[tuple[int, str]]:
        if not stop:
            raise InputError("the text is empty", where="stop", mend="leave it out")
        if stop not in self._stop_tokens:
            texts = self.base.tokenizer.batch_decode(
                [[i] for i in range(len(self.base.tokenizer))], clean_up_tokenization_spaces=False
            )
            self._stop_tokens[stop] = [(i, text) for i, text in enumerate(texts) if stop in text]
        return self._stop_tokens[stop]

    @cached_property
    def _start(self) -> list[int]:
        """The special tokens that the tokenizer sets before a text (one that it appends is left out)."""
        plain = self.base.tokenizer("a", add_special_tokens=False)["input_ids"]
        framed = self.base.tokenizer("a")["input_ids"]
        places = [i for i in range(len(framed)) if framed[i : i + len(plain)] == plain]
        return list(framed[: places[0]]) if places else []

    def prompts(self, prompts: Sequence[str], *, new_tokens: int = 0) -> list[list[int]]:
        """Token ids of prompts that up to ``new_tokens`` will follow.

        Raises:
            InputError: an empty prompt, or one that is too long for the model.
        """
        encoded = self.encode(prompts, starts=True)
        refuse_unusable(encoded, [new_tokens] * len(encoded), self.base.max_length)
        return encoded

    def pairs(
        self, prompts: Sequence[str], answers: Sequence[str], stop: str | None = None
    ) -> list[tuple[list[int], list[int]]]:
        """Token ids of prompts and of their answers with the end.

        An answer is tokenised after its prompt, as a model writes it; where the tokens of the two would grow
        together, it is tokenised alone.

        Raises:
            InputError: different numbers of the two, an empty prompt, or a row that is too long for the
                model.
        """
        if len(prompts) != len(answers):
            raise InputError(
                f"{len(prompts)} prompts and {len(answers)} answers", mend="give one answer a prompt"
            )
        end = self.endings(stop)[0]
        starts = self.encode(prompts, starts=True)
        whole = self.encode([p + a for p, a in zip(prompts, answers, strict=True)], starts=True)
        alone = self.encode(answers, starts=False)
        pairs = []
        for start, joint, own in zip(starts, whole, alone, strict=True):
            continues = joint[: len(start)] == start
            pairs.append((start, [*(joint[len(start) :] if continues else own), end]))
        refuse_unusable(starts, [len(answer) - 1 for _, answer in pairs], self.base.max_length)
        return pairs

    def encode(self, texts: Sequence[str], *, starts: bool) -> list[list[int]]:
        """Token ids of several texts.

        Args:
            texts: any number.
            starts: set the tokenizer's special tokens before each, unless it carries them already.

        Raises:
            InputError: a token that the model has no embedding for.
        """
        if not texts:
            return []
        encoded = self.base.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        known = self.base.model.get_input_embeddings().num_embeddings
        for text, ids in zip(texts, encoded, strict=True):
            if ids and max(ids) >= known:
                raise InputError(
                    f"the tokenizer makes token {max(ids)} of it, and the model knows {known} tokens",
                    where=f"{text[:40]!r}",
                    mend="give the tokenizer that belongs to the model",
                )
        bos = self.base.tokenizer.bos_token
        return [
            [*self._start, *ids] if starts and not (bos and text.startswith(bos)) else list(ids)
            for text, ids in zip(texts, encoded, strict=True)
        ]
