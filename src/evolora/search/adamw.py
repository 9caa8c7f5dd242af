"""AdamW on LoRA factors: supervised fine-tuning on the answers alone, the gradient baseline.

Sources: AdamW (arXiv 1711.05101), LoRA (arXiv 2106.09685). The loss is the mean negative log-likelihood of
the answer's tokens and EOS. The step size rises linearly over the first ``warmup`` of the budget, then falls
linearly to 0; gradients are clipped to a global norm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, sqrt
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from evolora.adapters import Adapter, Factors, ModuleSpec
from evolora.search.factors import assemble, first_factors, product_norm
from evolora.search.method import GradientMethod, TrainingEngine
from evolora.search.optimiser import descend
from evolora.search.state import State
from evolora.search.truncation import relative_error, truncate

if TYPE_CHECKING:
    from torch import Tensor


class AdamW(GradientMethod):
    """Answer-only fine-tuning of LoRA factors with AdamW."""

    name: ClassVar[str] = "adamw"
    summary: ClassVar[str] = "fine-tuning of LoRA factors on the answers, by gradients"
    source: ClassVar[str] = "AdamW, arXiv 1711.05101; LoRA, arXiv 2106.09685"

    lr: float = Field(2e-3, ge=0, description="Largest step size.")
    rank: int = Field(8, ge=1, description="Rank of the factors.")
    scale: float = Field(2.0, gt=0, description="Multiplies the product of the factors (alpha / rank).")
    beta1: float = Field(0.9, ge=0, lt=1, description="Memory of the gradient.")
    beta2: float = Field(0.99, ge=0, lt=1, description="Memory of its square.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled decay of the factors.")
    warmup: float = Field(
        0.1, ge=0, lt=1, description="Fraction of the budget over which the step size rises."
    )
    clip: float = Field(1.0, gt=0, description="Largest global norm of the gradient.")
    micro_batch: int = Field(
        0, ge=0, description="Examples in one backward pass, gradients summed up; 0: all at once."
    )

    def init(
        self,
        template: Mapping[str, ModuleSpec],
        seed: int,
        start: Adapter | None = None,
        norms: Mapping[str, Tensor] | None = None,
    ) -> State:
        """See :meth:`GradientMethod.init`; a LoRA of rank up to ``rank`` can be the start."""
        a, b = first_factors(template, self.rank, seed, start)
        tensors = {f"a/{name}": value for name, value in a.items()}
        return State(
            template, seed, tensors=tensors | {f"b/{name}": value / self.scale for name, value in b.items()}
        )

    def adapter(self, state: State, rank: int | None = None) -> Adapter:
        """The factors as they are, or truncated where ``rank`` is below theirs."""
        a, b = _split(state)
        provenance: dict[str, Any] = {
            "method": self.name,
            "seed": state.seed,
            "steps": state.step,
        } | self.model_dump()
        if rank is None or rank >= self.rank:
            return Adapter(assemble(state.template, a, b, self.scale), name=self.name, provenance=provenance)
        parts = {
            name: truncate(self.scale * (b[name] @ a[name]), rank, spec.kind)
            for name, spec in state.template.items()
        }
        provenance["truncation_error"] = relative_error(parts.values())
        modules: dict[str, Factors] = {name: part.factors for name, part in parts.items()}
        return Adapter(modules, name=self.name, provenance=provenance)

    def _step(
        self,
        state: State,
        engine: TrainingEngine,
        examples: Sequence[tuple[str, str]],
        progress: float,
        stop: str | None,
    ) -> tuple[State, dict[str, float]]:
        leaves = {name: value.detach().clone().requires_grad_() for name, value in _parameters(state).items()}
        loss = self._backward(state, leaves, engine, examples, stop)
        gradients = {
            name: leaf.grad if leaf.grad is not None else leaf.detach() * 0 for name, leaf in leaves.items()
        }
        norm = _norm(gradients)
        lr = self.lr * self._factor((state.progress + progress) / 2)
        sound = isfinite(loss) and isfinite(norm)
        tensors, moved = dict(state.tensors), 0.0
        if sound:
            shrink = min(1.0, self.clip / norm) if norm > 0 else 1.0
            new, memory = descend(
                "AdamW",
                leaves,
                {name: gradient * shrink for name, gradient in gradients.items()},
                state.tensors,
                lr=lr,
                betas=(self.beta1, self.beta2),
                weight_decay=self.weight_decay,
            )
            moved = _norm({name: new[name] - leaves[name].detach() for name in new})
            tensors |= new | memory
        following = state.after(tensors, state.numbers, progress)
        return following, {
            "loss": loss,
            "grad_norm": norm,
            "lr": lr,
            "update_norm": moved,
            "delta_norm": self.scale * product_norm(*_split(following)),
            "failed": float(not sound),
        }

    def _backward(
        self,
        state: State,
        leaves: Mapping[str, Tensor],
        engine: TrainingEngine,
        examples: Sequence[tuple[str, str]],
        stop: str | None,
    ) -> float:
        """Fills the leaves' gradients; each micro-batch counts by its share of the examples."""
        a = {name: leaves[f"a/{name}"] for name in state.template}
        b = {name: leaves[f"b/{name}"] for name in state.template}
        size, total = self.micro_batch or len(examples), 0.0
        for first in range(0, len(examples), size):
            part = examples[first : first + size]
            prompts, answers = [prompt for prompt, _ in part], [answer for _, answer in part]
            loss = engine.training_loss(a, b, self.scale, prompts, answers, stop=stop)
            loss = loss * (len(part) / len(examples))
            loss.backward()
            total += loss.item()
        return total

    def _factor(self, progress: float) -> float:
        rising = progress / self.warmup if self.warmup > 0 else 1.0
        return min(1.0, rising, (1 - progress) / (1 - self.warmup))


def _parameters(state: State) -> dict[str, Tensor]:
    return {f"{side}/{name}": state.tensor(f"{side}/{name}") for side in "ab" for name in state.template}


def _split(state: State) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return (
        {name: state.tensor(f"a/{name}") for name in state.template},
        {name: state.tensor(f"b/{name}") for name in state.template},
    )


def _norm(tensors: Mapping[str, Tensor]) -> float:
    return sqrt(sum(value.double().square().sum().item() for value in tensors.values()))
