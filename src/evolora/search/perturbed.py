"""Lazy populations around a mean: the members' factors are made from the noise when a block is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evolora.adapters import ModuleSpec, Population, Stack
from evolora.search.perturbation import Noise

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """How members map to directions of noise.

    Attributes:
        members: N.
        antithetic: members 2j and 2j + 1 take direction j with signs + and -; otherwise member i takes
            direction i.
    """

    members: int
    antithetic: bool

    @property
    def group(self) -> int:
        """How many members share a direction."""
        return 2 if self.antithetic else 1

    def directions(self, members: Sequence[int]) -> list[int]:
        """The direction of each of the members."""
        return [member // self.group for member in members]

    def signs(self, members: Sequence[int]) -> Tensor:
        """+1 or -1 for each of the members, float32."""
        import torch

        return torch.tensor([-1.0 if self.antithetic and member % 2 else 1.0 for member in members])

    def whole(self, members: Sequence[int]) -> bool:
        """Whether the members are whole pairs, each + before -: then a pair can share one set of factors."""
        pairs = zip(members[0::2], members[1::2], strict=False)
        return self.antithetic and len(members) % 2 == 0 and all(p % 2 == 0 and m == p + 1 for p, m in pairs)


class Around(Population):
    """What both kinds of perturbed population share: names, parents, groups."""

    def __init__(
        self, specs: Mapping[str, ModuleSpec], ranks: Mapping[str, int], noise: Noise, layout: Layout
    ) -> None:
        self.specs, self.ranks = specs, ranks
        self.noise, self.layout = noise, layout
        self.ids = tuple(f"{noise.step}.{member}" for member in range(layout.members))
        self.parents = ((f"{noise.step}.mean",),) * layout.members
        self.group = layout.group


class AroundDelta(Around):
    """Fresh noise on dense means.

    Member i computes ``W + D +- sigma E_j``; at low rank ``E_j`` stays in factors.

    Args:
        specs: shapes of the modules.
        delta: module to its mean D ``[d_out, d_in]``.
        noise: the step's noise; the matrix of a module bears the module's name.
        sigma: standard deviation of each weight's perturbation.
        layout: members to directions.
    """

    def __init__(
        self,
        specs: Mapping[str, ModuleSpec],
        delta: Mapping[str, Tensor],
        noise: Noise,
        sigma: float,
        layout: Layout,
    ) -> None:
        super().__init__(specs, dict.fromkeys(specs, noise.rank), noise, layout)
        self.shared = delta
        self._size = sigma * noise.gain

    def block(self, members: Sequence[int]) -> dict[str, Stack]:
        """See :meth:`Population.block`; whole pairs come as one group each, other members one by one."""
        coefficient = self.layout.signs(members) * self._size
        directions = self.layout.directions(members)
        if self.layout.whole(members):
            directions = directions[0::2]
        stacks = {}
        for name, spec in self.specs.items():
            a, b = self.noise.factors(name, (spec.d_out, spec.d_in), directions)
            stacks[name] = Stack(a, b, coefficient, kind=spec.kind)
        return stacks


class AroundFactors(Around):
    """Noise on the factors of one adapter.

    Member i is the adapter ``(B + c_i E_j) (A + c_i' F_j)`` with unit noise E and F.

    Args:
        specs: shapes of the modules.
        a: module to A ``[r, d_in]``.
        b: module to B ``[d_out, r]``.
        noise: the step's noise; the matrices are named by ``factor_names``.
        sigma_b: standard deviation of the perturbation of each entry of B; None leaves B alone.
        sigma_a: module to that of A; None leaves A alone.
        layout: members to directions.
    """

    def __init__(
        self,
        specs: Mapping[str, ModuleSpec],
        a: Mapping[str, Tensor],
        b: Mapping[str, Tensor],
        noise: Noise,
        sigma_b: float | None,
        sigma_a: Mapping[str, float] | None,
        layout: Layout,
    ) -> None:
        super().__init__(specs, {name: value.shape[0] for name, value in a.items()}, noise, layout)
        self._a, self._b = a, b
        self._sigma_a, self._sigma_b = sigma_a, sigma_b

    def block(self, members: Sequence[int]) -> dict[str, Stack]:
        """See :meth:`Population.block`; each member is a group of its own."""
        signs = self.layout.signs(members)
        stacks = {}
        for name, spec in self.specs.items():
            key_a, key_b = factor_names(name)
            size_a = None if self._sigma_a is None else signs * self._sigma_a[name]
            size_b = None if self._sigma_b is None else signs * self._sigma_b
            a = self._moved(self.noise, key_a, self._a[name], members, size_a)
            b = self._moved(self.noise, key_b, self._b[name], members, size_b)
            stacks[name] = Stack(a, b, kind=spec.kind)
        return stacks

    def _moved(
        self, noise: Noise, key: str, mean: Tensor, members: Sequence[int], size: Tensor | None
    ) -> Tensor:
        """``[n, ...]``: the mean plus each member's noise; one matrix under n names where nothing moves."""
        import torch

        if size is None:
            return mean.cpu().expand(len(members), -1, -1)
        directions = self.layout.directions(members)
        once = list(dict.fromkeys(directions))
        unit = noise.dense(key, (mean.shape[0], mean.shape[1]), once)
        place = {direction: i for i, direction in enumerate(once)}
        own = unit[[place[direction] for direction in directions]]
        return torch.add(mean.cpu(), own.mul_(size[:, None, None]))


class Alone(Population):
    """One member: a dense mean without any perturbation.

    Args:
        specs: shapes of the modules.
        delta: module to D ``[d_out, d_in]``.
    """

    def __init__(self, specs: Mapping[str, ModuleSpec], delta: Mapping[str, Tensor]) -> None:
        self.specs, self.ranks = specs, dict.fromkeys(specs, 1)
        self.ids = ("mean",)
        self.shared = delta

    def block(self, members: Sequence[int]) -> dict[str, Stack]:
        """See :meth:`Population.block`; factors of zeros, as all there is stands in ``shared``."""
        import torch

        return {
            name: Stack(
                torch.zeros(len(members), 1, spec.d_in),
                torch.zeros(len(members), spec.d_out, 1),
                kind=spec.kind,
            )
            for name, spec in self.specs.items()
        }


def factor_names(module: str) -> tuple[str, str]:
    """The names that the noise on a module's A and B goes by."""
    return f"{module}.lora_A", f"{module}.lora_B"
