"""The ledger: what was really spent, counted where it is spent."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields


@dataclass
class Ledger:
    """Counts that only grow.

    Attributes:
        forward_flops: multiply-adds counted as two, of every forward pass, adapters included.
        backward_flops: the same for backward passes.
        prompt_tokens: tokens that went through a forward pass at full length, padding included.
        generated_tokens: tokens sampled or decoded.
        evaluations: members x prompts that received a reward.
        seconds: wall time of the runs.
    """

    forward_flops: float = 0.0
    backward_flops: float = 0.0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    evaluations: int = 0
    seconds: float = 0.0

    @property
    def total_flops(self) -> float:
        """Forward and backward together."""
        return self.forward_flops + self.backward_flops

    def snapshot(self) -> dict[str, float]:
        """A copy as plain numbers."""
        return asdict(self)

    def add(self, other: Ledger | dict[str, float]) -> None:
        """Adds another ledger's counts to this one."""
        counts = other if isinstance(other, dict) else asdict(other)
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + counts.get(item.name, 0))
