"""MeZO: the two-point estimate (SPSA) and a plain step, the least that zeroth order can do.

    g = (R(M + eps Z) - R(M - eps Z)) / (2 eps),    M <- M + lr g Z,    Z with unit normal entries

The step is not normalised: a reward of another scale takes another step, as in the source. With
``space="weights"`` M is the dense delta of every adapted weight, with ``space="factors"`` the A and B of one
LoRA, which starts as PEFT starts it. The paper's step sizes are for losses of RoBERTa and OPT (1e-7 to 1e-6
on the weights, 1e-5 to 1e-4 on LoRA; eps 1e-3 and 1e-2).

Source: Fine-Tuning Language Models with Just Forward Passes, arXiv 2305.17333; SPSA, Spall 1992.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from evolora.adapters import Adapter, Population, as_population
from evolora.search.factors import assemble, product_norm, split
from evolora.search.method import Method
from evolora.search.origin import Origin, first_deltas, first_factors, kept_start, start_tensors
from evolora.search.perturbation import FullRank
from evolora.search.perturbed import Alone, AroundDelta, AroundFactors, Layout, factor_names
from evolora.search.state import State
from evolora.search.truncation import compress

if TYPE_CHECKING:
    from torch import Tensor

_PAIR = Layout(2, antithetic=True)


class MeZO(Method):
    """Two-point zeroth-order descent; see the module's text."""

    name: ClassVar[str] = "mezo"
    summary: ClassVar[str] = "two-point zeroth-order estimate with dense noise, on the weights or on a LoRA"
    source: ClassVar[str] = "MeZO, arXiv 2305.17333; SPSA, Spall 1992"

    sigma: float = Field(1e-3, ge=0, description="eps, the standard deviation of each parameter's noise.")
    lr: float = Field(1e-6, ge=0, description="Step size along the estimate; depends on the reward's scale.")
    space: Literal["weights", "factors"] = Field(
        "weights", description="What is searched: the weights, or A and B of a LoRA."
    )
    rank: int = Field(8, ge=1, description="In space factors: rank of the LoRA.")
    decay: Literal["linear", "constant"] = Field(
        "constant", description="How lr falls as the budget is spent."
    )
    export_rank: int | None = Field(
        None, ge=1, description="Rank of the adapter that comes out; on the weights chosen if not given."
    )

    def _first(self, origin: Origin) -> State:
        """See :meth:`Method.init`; a LoRA of any rank on the weights, up to ``rank`` on the factors."""
        if self.space == "weights":
            return origin.state(first_deltas(origin) | start_tensors(origin.start))
        tensors: dict[str, Tensor] = {}
        for name, sides in _paired(*first_factors(origin, self.rank)).items():
            tensors |= dict(zip(factor_names(name), sides, strict=True))
        return origin.state(tensors)

    def members(self, state: State) -> int:
        """Always two."""
        return 2

    def adapter(self, state: State, rank: int | None = None) -> Adapter:
        """On the factors the LoRA itself (unless ``rank`` is below its own), on the weights truncated."""
        provenance = self._provenance(state)
        rank = rank or self.export_rank
        if self.space == "factors" and (rank is None or rank >= self.rank):
            return Adapter(assemble(state.template, *split(state)), self.name, provenance=provenance)
        modules, lost = compress(self._deltas(state), state.template, rank, kept_start(state))
        return Adapter(modules, name=self.name, provenance=provenance | lost)

    def mean(self, state: State) -> Population:
        """One member at M, exactly."""
        if self.space == "weights":
            return Alone(state.template, self._deltas(state))
        return as_population(Adapter(assemble(state.template, *split(state)), name="mean"))

    def _propose(self, state: State) -> Population:
        noise = FullRank(state.seed, state.step)
        if self.space == "weights":
            return AroundDelta(state.template, self._deltas(state), noise, self.sigma, _PAIR)
        same = dict.fromkeys(state.template, self.sigma)
        return AroundFactors(state.template, *split(state), noise, self.sigma, same, _PAIR)

    def _update(self, state: State, rewards: Tensor, progress: float) -> tuple[State, dict[str, float]]:
        difference = rewards[0].double() - rewards[1].double()
        known = ~difference.isnan()
        rise = difference[known].mean().item() if bool(known.any()) else 0.0
        slope = rise / (2 * self.sigma) if self.sigma > 0 else 0.0
        lr = self.lr * (1 - state.progress if self.decay == "linear" else 1.0)
        noise, tensors, moved = FullRank(state.seed, state.step), dict(state.tensors), 0.0
        if slope != 0.0:
            for name in state.template if self.space == "weights" else state.tensors:
                old = state.tensor(name)
                step = noise.dense(name, (old.shape[0], old.shape[1]), [0])[0].mul_(lr * slope).to(old.device)
                moved += step.norm().item() ** 2
                tensors[name] = step.add_(old)
        following = state.after(tensors, state.numbers, progress)
        return following, {
            "slope": slope,
            "update_norm": sqrt(moved),
            "delta_norm": self._norm(following),
            "no_spread": float(slope == 0.0),
            "sigma": self.sigma,
            "lr": lr,
        }

    def _deltas(self, state: State) -> dict[str, Tensor]:
        if self.space == "weights":
            return {name: state.tensor(name) for name in state.template}
        return {name: b @ a for name, (a, b) in _paired(*split(state)).items()}

    def _norm(self, state: State) -> float:
        if self.space == "factors":
            return product_norm(*split(state))
        return sqrt(sum(delta.norm().item() ** 2 for delta in self._deltas(state).values()))


def _paired(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    return {name: (a[name], b[name]) for name in a}
