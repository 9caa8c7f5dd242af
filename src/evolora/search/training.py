"""What methods that train LoRA factors by gradients share: the factors, AdamW, the schedule, the export.

AdamW (arXiv 1711.05101) on the factors of a LoRA (arXiv 2106.09685). The step size rises linearly over the
first ``warmup`` of the budget, then falls linearly to 0; gradients are scaled down to a largest global norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import TYPE_CHECKING

from pydantic import Field

from evolora.adapters import Adapter, Factors
from evolora.search.factors import assemble, product_norm
from evolora.search.optimiser import descend
from evolora.search.origin import Origin, first_factors
from evolora.search.searcher import Searcher
from evolora.search.state import State
from evolora.search.truncation import relative_error, truncate

if TYPE_CHECKING:
    from torch import Tensor


class FactorTraining(Searcher):
    """The half of a method that holds LoRA factors in the state and moves them down a gradient."""

    lr: float = Field(2e-3, ge=0, description="Largest step size.")
    rank: int = Field(8, ge=1, description="Rank of the factors.")
    scale: float = Field(2.0, gt=0, description="Multiplies the product of the factors (alpha / rank).")
    beta1: float = Field(0.9, ge=0, lt=1, description="Memory of the gradient.")
    beta2: float = Field(0.99, ge=0, lt=1, description="Memory of its square.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled decay of the factors.")
    warmup: float = Field(
        0.1, ge=0, lt=1, description="Fraction of the budget over which the step size rises."
    )

    def _first(self, origin: Origin) -> State:
        """The first factors; a LoRA of rank up to ``rank`` can be the start."""
        a, b = first_factors(origin, self.rank)
        tensors = {f"a/{name}": value for name, value in a.items()}
        return origin.state(tensors | {f"b/{name}": value / self.scale for name, value in b.items()})

    def adapter(self, state: State, rank: int | None = None) -> Adapter:
        """The factors as they are, or truncated where ``rank`` is below theirs."""
        parameters = factors(state)
        a, b = side(parameters, "a"), side(parameters, "b")
        provenance = self._provenance(state)
        if rank is None or rank >= self.rank:
            return Adapter(assemble(state.template, a, b, self.scale), name=self.name, provenance=provenance)
        parts = {
            name: truncate(self.scale * (b[name] @ a[name]), rank, spec.kind)
            for name, spec in state.template.items()
        }
        provenance["truncation_error"] = relative_error(parts.values())
        modules: dict[str, Factors] = {name: part.factors for name, part in parts.items()}
        return Adapter(modules, name=self.name, provenance=provenance)

    def _lr(self, state: State, progress: float) -> float:
        """The step size in the middle of the step from the state's progress to this."""
        middle = (state.progress + progress) / 2
        rising = middle / self.warmup if self.warmup > 0 else 1.0
        return self.lr * min(1.0, rising, (1 - middle) / (1 - self.warmup))

    def _descend(
        self, leaves: Mapping[str, Tensor], tensors: Mapping[str, Tensor], lr: float, largest: float
    ) -> dict[str, Tensor]:
        """A state's tensors after one step of AdamW down the leaves' gradients, clipped to ``largest``."""
        norm = gradient_norm(leaves)
        shrink = min(1.0, largest / norm) if norm > 0 else 1.0
        new, memory = descend(
            "AdamW",
            leaves,
            {name: gradient * shrink for name, gradient in _gradients(leaves).items()},
            tensors,
            lr=lr,
            betas=(self.beta1, self.beta2),
            weight_decay=self.weight_decay,
        )
        return {**tensors, **new, **memory}

    def _lengths(self, before: State, after: State) -> dict[str, float]:
        """How far a step moved the factors, and how far from the base the delta is now."""
        old, new = factors(before), factors(after)
        return {
            "update_norm": _norm({name: new[name] - old[name] for name in new}),
            "delta_norm": self.scale * product_norm(side(new, "a"), side(new, "b")),
        }


def factors(state: State) -> dict[str, Tensor]:
    """The trained factors of a state, as ``a/MODULE`` and ``b/MODULE``."""
    return {f"{ab}/{name}": state.tensor(f"{ab}/{name}") for ab in "ab" for name in state.template}


def side(parameters: Mapping[str, Tensor], ab: str) -> dict[str, Tensor]:
    """Module to its ``a`` or to its ``b``."""
    prefix = f"{ab}/"
    return {name.removeprefix(prefix): value for name, value in parameters.items() if name.startswith(prefix)}


def leaves_of(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that gather gradients."""
    return {name: value.detach().clone().requires_grad_() for name, value in parameters.items()}


def gradient_norm(leaves: Mapping[str, Tensor]) -> float:
    """The global norm of the gradients that the leaves have gathered."""
    return _norm(_gradients(leaves))


def _gradients(leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: leaf.grad if leaf.grad is not None else leaf.detach() * 0 for name, leaf in leaves.items()}


def _norm(tensors: Mapping[str, Tensor]) -> float:
    return sqrt(sum(value.double().square().sum().item() for value in tensors.values()))
