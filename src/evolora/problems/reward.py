"""What a reward is: completions or scores in, one number each out, higher is better, NaN where it failed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from evolora.errors import ProtocolError
from evolora.tasks.task import Prompt

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.engine import Scores

Columns = Mapping[str, Sequence[Any]]


class Reward(ABC):
    """A reward. What it cannot judge is NaN and counted by kind, never a silent 0.

    Attributes:
        name: the specification that loads it again.
        needs: ``completion`` (judged as text) or ``score`` (read off teacher-forced scores).
        can_score: whether :meth:`from_scores` can answer too.
        failures: kind to number of completions that got NaN for it, since the reward was made.
        error: the last failure in one line, in the words of whatever raised.
    """

    needs: ClassVar[Literal["completion", "score"]] = "completion"
    can_score: ClassVar[bool] = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.failures: Counter[str] = Counter()
        self.error: str | None = None

    @property
    def fingerprint(self) -> str:
        """What identifies the judge: another where it may judge otherwise. The name, for built-in ones."""
        return self.name

    @abstractmethod
    def __call__(
        self, prompts: Sequence[Prompt], completions: Sequence[str], answers: Sequence[str], columns: Columns
    ) -> list[float]:
        """Judges one completion a prompt.

        Args:
            prompts: P prompts as the task has them.
            completions: P texts, the end of text removed.
            answers: P wanted answers.
            columns: ``answer``, ``family`` and the data's other columns, P values each.

        Returns:
            P numbers, NaN where judging failed.
        """

    def from_scores(self, scores: Scores) -> Tensor:
        """The rewards ``[N, P]`` of N members, from teacher-forced scores of the answers.

        Raises:
            ProtocolError: this reward must see completions.
        """
        raise ProtocolError(f"the reward {self.name} judges completions, not scores")

    def unusable(self, answer: str) -> str | None:
        """Why an answer cannot be judged against, or None."""
        return None

    def close(self) -> None:  # noqa: B027 (most rewards hold nothing)
        """Ends whatever the reward started; it may be called again afterwards, and starts anew."""

    def fail(self, kind: str, count: int, error: str | None = None) -> None:
        """Counts completions that got NaN."""
        self.failures[kind] += count
        self.error = error or self.error


class LogProb(Reward):
    """``logprob``: the mean log-likelihood (nats) of an answer token, the end of text included."""

    needs = "score"
    can_score = True

    def __init__(self) -> None:
        super().__init__("logprob")

    def __call__(
        self, prompts: Sequence[Prompt], completions: Sequence[str], answers: Sequence[str], columns: Columns
    ) -> list[float]:
        """Always raises: a completion has no log-likelihood of the answer."""
        raise ProtocolError("the reward logprob is read off scores, not completions")

    def from_scores(self, scores: Scores) -> Tensor:
        """``[N, P]``; NaN where the model's numbers overflowed."""
        mean = scores.log_likelihood / scores.tokens
        lost = ~mean.isfinite()
        if lost.any():
            self.fail("not_finite", int(lost.sum()), "the model's log-likelihood is not finite")
        return mean.masked_fill(lost, float("nan"))

    def unusable(self, answer: str) -> str | None:
        """An empty answer has no likelihood worth raising."""
        return None if answer.strip() else "it is empty"
