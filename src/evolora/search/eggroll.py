"""EGGROLL: evolution strategies with low-rank noise.

Source: Evolution Strategies at the Hyperscale, arXiv 2511.16652. Each parameter matrix M is searched by
members ``M +- sigma E_j`` with ``E_j = B_j A_j / sqrt(r)`` (unit variance, fresh each step); ``strategy`` has
the update.

    space="weights"   M is a dense float32 delta D of each adapted weight, outside the frozen base; the
                      adapter is its best approximation at ``export_rank``, and says what that leaves out
    space="factors"   M is B (and A) of one LoRA; the adapter is exact. B starts at 0 and A random; noise on A
                      is in units of 1 / sqrt(d_in), the size of its random entries
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from evolora.adapters import Adapter, Population, as_population
from evolora.search.factors import assemble, bound, product_norm, split
from evolora.search.origin import Origin, first_factors
from evolora.search.perturbation import Perturbation
from evolora.search.perturbed import AroundFactors, Layout, factor_names
from evolora.search.state import State
from evolora.search.strategy import Searched, Strategy

if TYPE_CHECKING:
    from torch import Tensor


class Eggroll(Strategy):
    """Evolution strategies with low-rank noise; see the module's text."""

    name: ClassVar[str] = "eggroll"
    summary: ClassVar[str] = "evolution strategies with low-rank noise, on the weights or on LoRA factors"
    source: ClassVar[str] = "Evolution Strategies at the Hyperscale, arXiv 2511.16652"

    rank: int = Field(1, ge=1, description="Rank of each member's perturbation.")
    space: Literal["weights", "factors"] = Field(
        "weights", description="What is searched: the weights or LoRA factors."
    )
    factors: Literal["b", "ab"] = Field("b", description="In space factors: search B alone, or A and B.")

    def _first(self, origin: Origin) -> State:
        """See :meth:`Method.init`.

        A LoRA can be the start: of any rank on the weights, of one up to ``export_rank`` on the factors.
        """
        if self.space == "weights":
            return super()._first(origin)
        a, b = first_factors(origin, self._factor_rank)
        keys = {name: factor_names(name) for name in origin.template}
        tensors = {key_a: a[name] for name, (key_a, _) in keys.items()}
        return self._anchored(origin, tensors | {key_b: b[name] for name, (_, key_b) in keys.items()})

    def adapter(self, state: State, rank: int | None = None) -> Adapter:
        """The mean as a LoRA: exact on factors (unless ``rank`` is below theirs), truncated on weights."""
        if self.space == "weights" or (rank is not None and rank < self._factor_rank):
            return super().adapter(state, rank)
        a, b = split(state)
        return Adapter(assemble(state.template, a, b), name=self.name, provenance=self._provenance(state))

    def mean(self, state: State) -> Population:
        """One member at the mean, exactly: on the weights it is the dense delta, not its truncation."""
        return as_population(self.adapter(state)) if self.space == "factors" else super().mean(state)

    def _propose(self, state: State) -> Population:
        if self.space == "weights":
            return super()._propose(state)
        a, b = split(state)
        sigma = self._sigma(state)
        sigma_a = (
            None
            if self.factors == "b"
            else {name: sigma * bound(spec) for name, spec in state.template.items()}
        )
        layout = Layout(self.population, self.antithetic)
        return AroundFactors(state.template, a, b, self._noise(state), sigma, sigma_a, layout)

    def _noise(self, state: State) -> Perturbation:
        return Perturbation(state.seed, state.step, self.rank)

    def _searched(self, state: State) -> dict[str, Searched]:
        if self.space == "weights":
            return super()._searched(state)
        found, noise = {}, self._noise(state)
        lr = self._lr(state)
        step = lr * self._sigma(state)
        for name, spec in state.template.items():
            key_a, key_b = factor_names(name)
            if self.factors == "ab":
                found[key_a] = Searched(noise, step * bound(spec))
            found[key_b] = Searched(noise, step, 1 - lr * self.weight_decay)
        return found

    @property
    def _walks_on_weights(self) -> bool:
        return self.space == "weights" and super()._walks_on_weights

    @property
    def _factor_rank(self) -> int:
        return self.export_rank or 16

    def _deltas(self, state: State) -> dict[str, Tensor]:
        if self.space == "weights":
            return super()._deltas(state)
        a, b = split(state)
        return {name: b[name] @ a[name] for name in state.template}

    def _delta_norm(self, state: State) -> float:
        return product_norm(*split(state)) if self.space == "factors" else super()._delta_norm(state)
