"""A population bound to a base: checked against it, what its members share prepared, its cost known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evolora.adapters import Adapter, ModuleSpec, Population, as_population
from evolora.engine.flops import adapter_flops
from evolora.engine.terms import Shared, shared_terms
from evolora.errors import AdapterError

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.engine.base import Base

Members = Population | Adapter | Sequence[Adapter] | None


@dataclass(frozen=True, eq=False)
class Bound:
    """What the engine knows of the members of a call.

    Attributes:
        base: the model that they fit.
        population: None for the base itself.
        count: members.
        shared: dense terms common to all members.
        start: the first layer with an adapted module, where rows part into members; 0 parts them at once.
        token_flops: FLOPs per token of one member's own products.
    """

    base: Base
    population: Population | None
    count: int
    shared: Mapping[str, Shared]
    start: int
    token_flops: float

    @property
    def specs(self) -> Mapping[str, ModuleSpec]:
        """Shapes of the adapted modules."""
        return {} if self.population is None else self.population.specs

    @property
    def ranks(self) -> Mapping[str, int]:
        """Rank of each adapted module."""
        return {} if self.population is None else self.population.ranks

    @property
    def group(self) -> int:
        """Blocks of members are multiples of this where they can be."""
        return 1 if self.population is None else self.population.group


class Binder:
    """Binds populations to one base; keeps the last shared deltas, which the calls of a step share."""

    def __init__(self, base: Base, *, prefix_reuse: bool) -> None:
        self.base, self.prefix_reuse = base, prefix_reuse
        self._deltas: Mapping[str, Tensor] = {}
        self._shared: Mapping[str, Shared] = {}

    def __call__(self, members: Members) -> Bound:
        """Checks that every member fits the base, and prepares what they share.

        Raises:
            AdapterError: a module is missing, or has another shape.
        """
        if members is None:
            return Bound(self.base, None, 1, {}, 0, 0.0)
        population = as_population(members)
        for adapter in getattr(population, "adapters", ()):
            self.base.check(adapter)
        self.base.check_specs(population.specs, None, None, "population")
        self._prepare(population)
        layer_of = self.base.structure.layer_of
        start = min((layer_of[name] for name in {*population.specs, *population.shared}), default=0)
        own = adapter_flops(population.specs, population.ranks)
        own += sum(2.0 * term.matrix.numel() for term in self._shared.values() if not term.fused)
        shares = self.prefix_reuse and 0 < start < self.base.depth and self.base.parts_anywhere
        return Bound(self.base, population, len(population), self._shared, start if shares else 0, own)

    def _prepare(self, population: Population) -> None:
        if self._deltas is population.shared:
            return
        known = self.base.structure.specs
        for path, delta in population.shared.items():
            if path not in known or tuple(delta.shape) != (known[path].d_out, known[path].d_in):
                raise AdapterError(f"a shared delta of shape {tuple(delta.shape)} does not fit", where=path)
        self._shared = {}  # the old ones are let go before the new ones are made
        self._deltas = {}
        self._shared = shared_terms(self.base, population.shared)
        self._deltas = population.shared
