"""What a bench measures: the cases of each kind, and how often they are repeated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from evolora.errors import ConfigError

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class ForwardCase:
    """One forward pass of ``members x rows`` sequences of ``tokens`` tokens, logits at the last position.

    Attributes:
        members: N.
        rows: sequences of each member; all members get the same ones.
        tokens: their length.
        rank: of each member's delta.
        looped: how many members the one-by-one peers run, their time scaled up to N; None runs all.
        targets: the adapted modules.
        peers: whether PEFT and the loops run too.
    """

    kind: ClassVar[str] = "forward"
    members: int
    rows: int
    tokens: int
    rank: int
    looped: int | None = None
    targets: str = "all-linear"
    peers: bool = True


@dataclass(frozen=True)
class GenerationCase:
    """Greedy decoding of ``rows`` prompts by each of ``members`` members; see ``ForwardCase``."""

    kind: ClassVar[str] = "generation"
    members: int
    rows: int
    rank: int
    new_tokens: int
    looped: int | None = None
    targets: str = "all-linear"


@dataclass(frozen=True)
class PrefixCase:
    """A forward pass with adapters on the top layers only, against adapters on all layers.

    Attributes:
        shares: the adapted part of the layers, from the top; each gives a row.
    """

    kind: ClassVar[str] = "prefix"
    members: int
    rows: int
    tokens: int
    rank: int
    shares: tuple[float, ...] = (1 / 3, 1 / 6)
    targets: str = "all-linear"


@dataclass(frozen=True)
class MemoryCase:
    """Peak memory of a process that scores ``members`` members against one that scores ``against``."""

    kind: ClassVar[str] = "memory"
    members: int
    against: int
    rows: int
    tokens: int
    rank: int
    targets: str = "all-linear"


@dataclass(frozen=True)
class StepCase:
    """A whole EGGROLL step on ``rows`` prompts with answers: ask, score by log-likelihood, tell."""

    kind: ClassVar[str] = "step"
    members: int
    rows: int
    rank: int
    targets: str = "all-linear"


Case = ForwardCase | GenerationCase | PrefixCase | StepCase | MemoryCase


@dataclass(frozen=True)
class Plan:
    """The cases of a bench and the number of timed rounds of each.

    Attributes:
        rounds: every contestant runs once in each, in turn, after a round that is not timed.
        cases: in the order of the rows.
        half: the cases for a base in half precision.
    """

    rounds: int
    cases: tuple[Case, ...]
    half: tuple[Case, ...]

    def of(self, dtype: str) -> tuple[Case, ...]:
        """The cases for a base of this dtype."""
        return self.cases if dtype == "float32" else self.half


def dtypes(text: str | None, *, quick: bool) -> list[str]:
    """The dtypes of a bench from a list with commas; by default float32, and without ``quick`` bfloat16 too.

    Raises:
        ConfigError: one is unknown.
    """
    if text is None:
        return ["float32"] if quick else ["float32", "bfloat16"]
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in DTYPES:
            raise ConfigError(f"'{name}' is unknown", where="dtype", mend=f"choose among {', '.join(DTYPES)}")
    return names


FULL = Plan(
    rounds=5,
    cases=(
        ForwardCase(16, 4, 64, rank=8, looped=2),
        ForwardCase(64, 1, 16, rank=8, looped=8),
        ForwardCase(64, 1, 16, rank=1, looped=8),
        ForwardCase(4, 1, 256, rank=8, looped=2),
        GenerationCase(64, 1, rank=4, new_tokens=6, looped=4),
        GenerationCase(16, 4, rank=8, new_tokens=6, looped=4, targets="attention"),
        PrefixCase(16, 1, 64, rank=4),
        PrefixCase(64, 1, 64, rank=4),
        StepCase(8, 8, rank=1),
        MemoryCase(256, against=16, rows=1, tokens=32, rank=8),
    ),
    half=(
        ForwardCase(16, 4, 64, rank=8, looped=2),
        ForwardCase(64, 1, 16, rank=8, looped=8),
        GenerationCase(64, 1, rank=4, new_tokens=6, looped=4),
        PrefixCase(16, 1, 64, rank=4),
        PrefixCase(64, 1, 64, rank=4),
        StepCase(8, 8, rank=1),
    ),
)

QUICK = Plan(
    rounds=3,
    cases=(
        ForwardCase(8, 1, 64, rank=8, peers=False),
        ForwardCase(32, 1, 16, rank=8, looped=4),
        GenerationCase(16, 1, rank=4, new_tokens=6, looped=2),
        PrefixCase(8, 1, 64, rank=4),
        MemoryCase(256, against=16, rows=1, tokens=16, rank=8),
    ),
    half=(ForwardCase(8, 2, 64, rank=8, peers=False), PrefixCase(8, 1, 64, rank=4)),
)
