"""All rewards by name, and what a specification of one may look like."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from evolora.errors import RewardError
from evolora.problems.reward import LogProb, Reward
from evolora.problems.user_reward import TIMEOUT, CallableReward, FileReward
from evolora.problems.verifiers import Contains, Exact, Numeric, Regex

KINDS: dict[str, Callable[[], Reward]] = {
    "exact": Exact,
    "numeric": Numeric,
    "contains": Contains,
    "logprob": LogProb,
}


def load_reward(spec: str | Reward | Callable[..., Any], *, timeout: float = TIMEOUT) -> Reward:
    """Loads a reward.

    Args:
        spec: ``exact``, ``numeric``, ``contains``, ``logprob``, ``regex:PATTERN``, ``FILE.py:FUNCTION``, a
            callable of TRL's signature, or a reward (which comes back as it is).
        timeout: seconds that one call of a function in a file may take.

    Raises:
        RewardError: an unknown name (the known ones are listed), a bad pattern, a file or function that
            does not load.
    """
    if isinstance(spec, Reward):
        return spec
    if not isinstance(spec, str):
        return CallableReward(spec)
    if spec in KINDS:
        return KINDS[spec]()
    if spec.startswith("regex:"):
        return Regex(spec.removeprefix("regex:"))
    file, _, function = spec.rpartition(":")
    if file.endswith(".py"):
        return FileReward(file, function, timeout=timeout)
    if spec.endswith(".py"):
        raise RewardError("no function is named", where=spec, mend=f"write {spec}:FUNCTION")
    near = difflib.get_close_matches(spec, KINDS, n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    raise RewardError(
        f'no reward is named "{spec}"',
        mend=f"{guess}known are {', '.join(KINDS)}, regex:PATTERN, FILE.py:FUNCTION",
    )


def reward_names() -> list[tuple[str, str]]:
    """What may be given, and what it is, one line each."""
    made: dict[str, Callable[..., Reward]] = {**KINDS, "regex:PATTERN": Regex, "FILE.py:FUNCTION": FileReward}
    return [(name, _first_line(kind)) for name, kind in made.items()]


def _first_line(kind: Callable[..., Reward]) -> str:
    line = (kind.__doc__ or "").splitlines()[0]
    return line.partition("``: ")[2] or line
