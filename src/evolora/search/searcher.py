"""What all searches share, with gradients and without: options, a first state, an adapter at the end.

A searcher is its options: frozen, without any other state. Everything that changes is in the state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from evolora.adapters import Adapter, ModuleSpec, Population, as_population
from evolora.errors import ProtocolError
from evolora.search.options import Options
from evolora.search.origin import Origin
from evolora.search.state import State

if TYPE_CHECKING:
    from torch import Tensor


class Searcher(Options, ABC):
    """What methods with and without gradients share; a new one implements ``_first`` and ``adapter``.

    Attributes:
        name: as in ``make_method`` and ``--method``.
        summary: one line for ``evolora methods``.
        source: the paper it comes from.
        needs_norms: whether ``init`` must be told the norms of the base's weights.
        step_options: the options that a step's size is proportional to.
        spread_advice: what may help where all rewards are alike.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    needs_norms: ClassVar[bool] = False
    step_options: ClassVar[tuple[str, ...]] = ("lr",)
    spread_advice: ClassVar[str] = "a larger sigma"

    @property
    def least_batch(self) -> int:
        """How many prompts a step needs at least."""
        return 1

    def init(
        self,
        template: Mapping[str, ModuleSpec],
        seed: int,
        start: Adapter | None = None,
        norms: Mapping[str, Tensor] | None = None,
    ) -> State:
        """The state before the first step.

        Args:
            template: the shapes of the modules to adapt.
            seed: every random choice follows from it.
            start: an adapter to start from; modules that it does not name start at the base.
            norms: module to the norms of its base weight, one per output channel, ``[d_out]``
                (``Base.weight_norms``); only methods with ``needs_norms`` look at them.

        Raises:
            ProtocolError: the template names no module.
            AdapterError: ``start`` does not fit the template, or is one that this method cannot start from.
        """
        return self._first(Origin(template, seed, start, norms))

    @abstractmethod
    def _first(self, origin: Origin) -> State:
        """See :meth:`init`."""

    @abstractmethod
    def adapter(self, state: State, rank: int | None = None) -> Adapter:
        """The adapter that the search has arrived at.

        Args:
            state: any state of this method.
            rank: the largest rank it may have; the method's own choice by default. Where that truncates, the
                relative error (Frobenius) stands in the adapter's provenance as ``truncation_error``.
        """

    def halved(self, times: int) -> Self:
        """The same method with its steps halved that many times."""
        smaller = {name: getattr(self, name) / 2**times for name in self.step_options}
        return self.model_copy(update=smaller)

    def mean(self, state: State) -> Population:
        """One member: what the search has arrived at, exactly (never truncated)."""
        return as_population(self.adapter(state))

    def members_to_export(self, state: State) -> Mapping[str, Adapter]:
        """The population that stands beside the adapter, by name; none for a search of a single point.

        What ``index.json`` says of a member stands in its provenance under ``member``.
        """
        return {}

    def _provenance(self, state: State) -> dict[str, Any]:
        """What the adapters of this search say of how they were made."""
        return {"method": self.name, "seed": state.seed, "steps": state.step} | self.model_dump()


def check_progress(progress: float, where: str) -> None:
    """Refuses what is no fraction of a budget.

    Raises:
        ProtocolError: it lies outside 0 to 1.
    """
    if not 0 <= progress <= 1:
        raise ProtocolError(
            f"a progress of {progress}", where=where, mend="give the spent fraction of the budget, 0 to 1"
        )
