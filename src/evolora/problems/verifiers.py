"""Rewards that compare a completion with the answer: 1.0 right, 0.0 wrong."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

from evolora.errors import RewardError
from evolora.problems.reward import Columns, Reward
from evolora.tasks.task import Prompt

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.engine import Scores

# a sign counts only where it does not join two things (5-3, x-1); digits inside words are no numbers
_NUMBER = re.compile(
    r"(?<![0-9A-Za-z_.])(?:(?<![\w)\]])[-+\u2212])?"
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?"
)


class Verifier(Reward):
    """A reward of one completion and one answer at a time."""

    @abstractmethod
    def right(self, completion: str, answer: str) -> bool:
        """Whether the completion gives the answer."""

    def __call__(
        self, prompts: Sequence[Prompt], completions: Sequence[str], answers: Sequence[str], columns: Columns
    ) -> list[float]:
        """1.0 or 0.0 a completion; NaN (kind ``answer``) where the answer cannot be judged against."""
        rewards = []
        for completion, answer in zip(completions, answers, strict=True):
            reason = self.unusable(answer)
            if reason:
                self.fail("answer", 1, f"the answer cannot be judged against: {reason}")
            rewards.append(float("nan") if reason else float(self.right(completion, answer)))
        return rewards

    def unusable(self, answer: str) -> str | None:
        """An empty answer would make silence right."""
        return None if answer.strip() else "it is empty"


class Exact(Verifier):
    """``exact``: the completion is the answer, letter for letter, outer white space aside."""

    can_score = True

    def __init__(self) -> None:
        super().__init__("exact")

    def right(self, completion: str, answer: str) -> bool:
        """Equality after stripping both."""
        return completion.strip() == answer.strip()

    def from_scores(self, scores: Scores) -> Tensor:
        """``[N, P]``: every answer token and the end are the most likely: greedy decoding says the answer.

        Stricter than :meth:`right`: only the answer's canonical tokens count, white space included.
        """
        return scores.exact.float()


class Numeric(Verifier):
    """``numeric``: the last number of the completion equals the last number of the answer.

    Read are decimals, signs, thousands in commas (1,234.50) and exponents; compared are the exact decimal
    values, so 19.0 equals 19 and 0.33 does not equal 1/3. A fraction is two numbers, of which the last
    counts.
    """

    def __init__(self) -> None:
        super().__init__("numeric")

    def right(self, completion: str, answer: str) -> bool:
        """Equality of the last numbers; a completion without a number is wrong."""
        said = last_number(completion)
        return said is not None and said == last_number(answer)

    def unusable(self, answer: str) -> str | None:
        """An answer without a number."""
        return None if last_number(answer) is not None else "it holds no number"


class Contains(Verifier):
    """``contains``: the answer stands somewhere in the completion, upper and lower case alike.

    It must stand free: 19 is not in 190, man is not in woman.
    """

    def __init__(self) -> None:
        super().__init__("contains")

    def right(self, completion: str, answer: str) -> bool:
        """A search of the stripped answer between other letters and digits."""
        wanted = re.escape(answer.strip())
        return re.search(rf"(?<![0-9A-Za-z]){wanted}(?![0-9A-Za-z])", completion, re.IGNORECASE) is not None


class Regex(Verifier):
    """``regex:PATTERN``: the pattern (Python's ``re``) is found in the completion.

    With a group in it, what the first group of the last match holds must be the answer, outer white space
    aside: ``regex:####(.*)``.

    Args:
        pattern: the regular expression.

    Raises:
        RewardError: it does not compile.
    """

    def __init__(self, pattern: str) -> None:
        super().__init__(f"regex:{pattern}")
        try:
            self.pattern = re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise RewardError(
                f"not a regular expression ({error})", where=self.name, mend="correct the pattern"
            ) from None

    def right(self, completion: str, answer: str) -> bool:
        """A match anywhere; with a group, the last match's first group against the answer."""
        if not self.pattern.groups:
            return self.pattern.search(completion) is not None
        found = [match.group(1) for match in self.pattern.finditer(completion)]
        return bool(found) and (found[-1] or "").strip() == answer.strip()

    def unusable(self, answer: str) -> str | None:
        """An empty answer, where the pattern extracts one."""
        return super().unusable(answer) if self.pattern.groups else None


def last_number(text: str) -> Decimal | None:
    """The last number in a text, None if there is none."""
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "").replace("\u2212", "-")) if found else None
