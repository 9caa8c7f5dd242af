"""A population: N adapters of one structure, handed to the engine block by block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evolora.adapters.adapter import Adapter, Factors, ModuleSpec
from evolora.errors import AdapterError

if TYPE_CHECKING:
    from torch import Tensor


DENSE = 0  # the rank of a module whose deltas are no product of factors


@dataclass(frozen=True, eq=False)
class Stack:
    """One module's factors for a block of n members, in g groups of ``n / g`` members that share factors.

    Member i of the block computes ``coefficient[i] * b[i // m] @ a[i // m] @ x`` with ``m = n // g``:
    the two members of an antithetic pair share one set of factors with coefficients +1 and -1.

    Attributes:
        a: ``[g, r, d_in]``, float32; None stands for the identity, where ``b`` holds dense deltas.
        b: ``[g, d_out, r]``, float32, every scale folded in (``r = d_in`` where ``a`` is None).
        coefficient: ``[n]`` or None (all ones, g = n).
        magnitude: ``[n, d_out]`` or None; DoRA's m, a row of NaN for a member that is plain LoRA here.
        kind: ``linear`` or ``embedding``.
    """

    a: Tensor | None
    b: Tensor
    coefficient: Tensor | None = None
    magnitude: Tensor | None = None
    kind: str = "linear"


class Population(ABC):
    """N members over one set of modules. Blocks are made when asked for, so N costs no memory by itself.

    Attributes:
        specs: shapes of the adapted modules; a member without a module has a zero delta there.
        ranks: the (padded) rank of each module, for the ledger and the chunking; ``DENSE`` where members have
            dense deltas of their own.
        ids: one name a member.
        parents: for each member the ids that it came from.
        shared: dense float32 ``[d_out, d_in]`` deltas common to every member (the mean of a search on W).
        group: blocks must start and end on multiples of this (2 for antithetic pairs).
    """

    specs: Mapping[str, ModuleSpec]
    ranks: Mapping[str, int]
    ids: Sequence[str]
    parents: Sequence[tuple[str, ...]] = ()
    shared: Mapping[str, Tensor] = {}
    group: int = 1

    def __len__(self) -> int:
        return len(self.ids)

    @abstractmethod
    def block(self, members: Sequence[int]) -> dict[str, Stack]:
        """The stacked factors of the given members (indices into ``ids``, any order)."""

    def select(self, members: Sequence[int]) -> Population:
        """A population of these members only; they compute what they compute here."""
        return _Selection(self, tuple(members))


class _Selection(Population):
    """Some members of another population."""

    def __init__(self, whole: Population, members: tuple[int, ...]) -> None:
        self._whole, self._members = whole, members
        self.specs, self.ranks, self.shared = whole.specs, whole.ranks, whole.shared
        self.ids = tuple(whole.ids[i] for i in members)
        self.parents = tuple(whole.parents[i] for i in members) if whole.parents else ()

    def block(self, members: Sequence[int]) -> dict[str, Stack]:
        return self._whole.block([self._members[i] for i in members])


class Stacked(Population):
    """A population made of adapters that exist: different ranks and module sets are padded with zeros.

    Args:
        adapters: at least one; on modules they share, their shapes must agree.
        ids: one name each; by default the adapters' own names.

    Raises:
        AdapterError: no adapters, or shapes that disagree on a module.
    """

    def __init__(self, adapters: Sequence[Adapter], ids: Sequence[str] | None = None) -> None:
        if not adapters:
            raise AdapterError("a population needs at least one adapter")
        specs: dict[str, ModuleSpec] = {}
        ranks: dict[str, int] = {}
        for adapter in adapters:
            for name, factors in adapter.modules.items():
                if specs.setdefault(name, factors.spec) != factors.spec:
                    raise AdapterError(
                        f"{adapter.name} has {factors.spec} where another adapter has {specs[name]}",
                        where=name,
                        mend="they belong to different bases",
                    )
                ranks[name] = max(ranks.get(name, 0), factors.rank)
        self.adapters = tuple(adapters)
        self._last: tuple[tuple[int, ...], dict[str, Stack]] | None = None
        self.specs, self.ranks = specs, ranks
        self.ids = tuple(ids) if ids is not None else tuple(a.name for a in adapters)

    def block(self, members: Sequence[int]) -> dict[str, Stack]:
        """See :meth:`Population.block`; each member is a group of its own. The last block is kept."""
        if self._last is None or self._last[0] != tuple(members):
            self._last = None  # never two blocks in memory
            stacks = {
                name: self._stack(name, [self.adapters[i].modules.get(name) for i in members])
                for name in self.specs
            }
            self._last = (tuple(members), stacks)
        return self._last[1]

    def _stack(self, name: str, factors: Sequence[Factors | None]) -> Stack:
        import torch

        spec, rank = self.specs[name], self.ranks[name]
        a = torch.zeros(len(factors), rank, spec.d_in)
        b = torch.zeros(len(factors), spec.d_out, rank)
        magnitude = None
        for i, f in enumerate(factors):
            if f is None:
                continue
            a[i, : f.rank] = f.a
            torch.mul(f.b, f.scale, out=b[i, :, : f.rank])
            if f.magnitude is not None:
                if magnitude is None:
                    magnitude = torch.full((len(factors), spec.d_out), float("nan"))
                magnitude[i] = f.magnitude
        return Stack(a, b, None, magnitude, spec.kind)


class Copies(Population):
    """One LoRA under several names: members that compute the same and draw different samples.

    Args:
        adapter: a plain LoRA (DoRA cannot stand on factors that members share).
        ids: one name each.
    """

    def __init__(self, adapter: Adapter, ids: Sequence[str]) -> None:
        self.adapters = (adapter,)
        self.specs = adapter.specs
        self.ranks = {name: factors.rank for name, factors in adapter.modules.items()}
        self.ids = tuple(ids)

    def block(self, members: Sequence[int]) -> dict[str, Stack]:
        """See :meth:`Population.block`; all members are one group."""
        import torch

        ones = torch.ones(len(members))
        return {
            name: Stack(
                f.a[None],
                f.b[None] * f.scale,
                ones,
                None if f.magnitude is None else f.magnitude.expand(len(members), -1),
                f.kind,
            )
            for name, f in self.adapters[0].modules.items()
        }


def as_population(members: Population | Adapter | Sequence[Adapter]) -> Population:
    """Wraps an adapter or a list of adapters; a population comes back as it is."""
    if isinstance(members, Population):
        return members
    return Stacked([members] if isinstance(members, Adapter) else list(members))
