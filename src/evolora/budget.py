"""A budget: steps, evaluations, tokens, FLOPs or seconds; the first spent ends the search, and is named."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from evolora.errors import ConfigError

if TYPE_CHECKING:
    from evolora.engine import Ledger


@dataclass(frozen=True)
class Budget:
    """What a search may spend; None does not limit. At least one limit is needed.

    Attributes:
        steps: of the method.
        evaluations: members x prompts that got a reward (examples trained on, for a gradient baseline).
        tokens: read and generated, members counted one by one.
        forward_flops: of forward passes alone: gradients come for nothing.
        flops: forward and backward together.
        seconds: wall time of the search. A run limited by it cannot be repeated bit for bit.

    Raises:
        ConfigError: no limit, or one that is not positive.
    """

    steps: int | None = None
    evaluations: int | None = None
    tokens: int | None = None
    forward_flops: float | None = None
    flops: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        limits = self.limits()
        if not limits:
            raise ConfigError("no budget", mend=f"set one of {', '.join(item.name for item in fields(self))}")
        for name, limit in limits.items():
            if not limit > 0:
                raise ConfigError(f"a budget of {limit} {name}", mend="it must be positive")

    def limits(self) -> dict[str, Any]:
        """The limits that are set, by name."""
        named = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: limit for name, limit in named.items() if limit is not None}

    @staticmethod
    def spent(steps: int, ledger: Ledger) -> dict[str, float]:
        """What has been spent, by name."""
        return {
            "steps": steps,
            "evaluations": ledger.evaluations,
            "tokens": ledger.prompt_tokens + ledger.generated_tokens,
            "forward_flops": ledger.forward_flops,
            "flops": ledger.total_flops,
            "seconds": ledger.seconds,
        }

    def nearest(self, spent: dict[str, float]) -> tuple[str, float]:
        """The limit that is nearest to its end, and the fraction of it that is spent (1 or more: the end)."""
        return max(
            ((name, spent[name] / limit) for name, limit in self.limits().items()), key=lambda pair: pair[1]
        )
