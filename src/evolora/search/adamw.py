"""AdamW on LoRA factors: supervised fine-tuning on the answers alone, the gradient baseline.

Sources: AdamW (arXiv 1711.05101), LoRA (arXiv 2106.09685). The loss is the mean negative log-likelihood of
the answer's tokens and EOS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from evolora.search.gradient_method import GradientMethod, TrainingEngine
from evolora.search.state import State
from evolora.search.training import FactorTraining, factors, gradient_norm, leaves_of, side

if TYPE_CHECKING:
    from torch import Tensor


class AdamW(FactorTraining, GradientMethod):
    """Answer-only fine-tuning of LoRA factors with AdamW."""

    name: ClassVar[str] = "adamw"
    summary: ClassVar[str] = "fine-tuning of LoRA factors on the answers, by gradients"
    source: ClassVar[str] = "AdamW, arXiv 1711.05101; LoRA, arXiv 2106.09685"

    clip: float = Field(1.0, gt=0, description="Largest global norm of the gradient.")
    micro_batch: int = Field(
        0, ge=0, description="Examples in one backward pass, gradients summed up; 0: all at once."
    )

    def _step(
        self,
        state: State,
        engine: TrainingEngine,
        examples: Sequence[tuple[str, str]],
        progress: float,
        stop: str | None,
    ) -> tuple[State, dict[str, float]]:
        leaves = leaves_of(factors(state))
        loss = self._backward(leaves, engine, examples, stop)
        norm, lr = gradient_norm(leaves), self._lr(state, progress)
        sound = isfinite(loss) and isfinite(norm)
        tensors = self._descend(leaves, state.tensors, lr, self.clip) if sound else state.tensors
        following = state.after(tensors, state.numbers, progress)
        return following, {
            "loss": loss,
            "grad_norm": norm,
            "lr": lr,
            **self._lengths(state, following),
            "failed": float(not sound),
        }

    def _backward(
        self,
        leaves: Mapping[str, Tensor],
        engine: TrainingEngine,
        examples: Sequence[tuple[str, str]],
        stop: str | None,
    ) -> float:
        """Fills the leaves' gradients; each micro-batch counts by its share of the examples."""
        a, b = side(leaves, "a"), side(leaves, "b")
        size, total = self.micro_batch or len(examples), 0.0
        for first in range(0, len(examples), size):
            part = examples[first : first + size]
            prompts, answers = [prompt for prompt, _ in part], [answer for _, answer in part]
            loss = engine.training_loss(a, b, self.scale, prompts, answers, stop=stop)
            loss = loss * (len(part) / len(examples))
            loss.backward()
            total += loss.item()
        return total
