"""A few coordinates for an adapter: linear maps from x in R^d to the deltas of all modules.

    delta_m(x) = B_m diag(c_m(x)) A_m,    an entry of c_m(x) is one coordinate x_k, or fixed

A and B never change, so all points share them and differ in a diagonal. Three maps:

    random_directions   B_m = unit u_k, A_m = v_k^T with fixed random orthonormal u_k and v_k; x starts at 0.
                        unit = sqrt(d_out d_in / r), so that x with standard deviation sigma moves each weight
                        by sigma (RMS) whatever the rank r and the shape are: the sigma of the other methods
    singular_values     of a start adapter's delta U S V^T: B_m = S_max U, A_m = V^T, x starts at S / S_max
    merge_weights       of several adapters: delta(x) = sum_k x_k delta_k, exactly; x starts at 1 / K

Singular values are moved by addition, in units of the module's largest: a step of equal size is then an equal
change of the delta (Frobenius) along each direction of a module, and a value can pass through zero. Factors
``exp(x)`` or ``1 + x`` would leave small values nearly fixed, and the former could never turn a direction
that hurts around.

Sources: random subspaces, arXiv 1804.08838 and 2012.13255; fixed random factors with a diagonal, VeRA, arXiv
2310.11454; singular values as what is tuned, SVFT, arXiv 2405.19597.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from evolora.adapters import Adapter, Factors, ModuleSpec, Population, Stack
from evolora.adapters.noise import normal
from evolora.errors import AdapterError
from evolora.search.origin import check_start
from evolora.search.perturbed import factor_names
from evolora.search.state import State

if TYPE_CHECKING:
    from torch import Tensor

_ZERO = 1e-6  # singular values below this part of the largest are rounding of float32 factors
_FIXED = -1


@dataclass(frozen=True, eq=False)
class Coordinates:
    """A linear map from coordinates to deltas.

    Attributes:
        specs: shapes of the modules.
        a: module to A ``[r, d_in]``, float32; a module with r = 0 stays as in the base.
        b: module to B ``[d_out, r]``, float32, units folded in.
        index: module to ``[r]`` int64: the coordinate that each direction follows, or -1 for a fixed one.
        fixed: module to ``[r]`` float64: the values of the fixed directions; 0 for the others.
        start: ``[d]`` float64, the point to start from.
    """

    specs: Mapping[str, ModuleSpec]
    a: Mapping[str, Tensor]
    b: Mapping[str, Tensor]
    index: Mapping[str, Tensor]
    fixed: Mapping[str, Tensor]
    start: Tensor

    @property
    def dimension(self) -> int:
        """d, the number of coordinates."""
        return len(self.start)

    @property
    def moved(self) -> dict[str, ModuleSpec]:
        """The modules that have directions."""
        return {name: spec for name, spec in self.specs.items() if len(self.a[name]) > 0}

    def diagonal(self, name: str, points: Tensor) -> Tensor:
        """c(x) of one module at some points ``[n, d]`` (float64): ``[n, r]`` float32."""
        import torch

        index = self.index[name]
        return torch.where(index == _FIXED, self.fixed[name], points[:, index]).float()

    def modules(self, point: Tensor) -> dict[str, Factors]:
        """The adapter at a point ``[d]``, module by module; exact, of the rank of the directions."""
        return {
            name: Factors(self.a[name], self.b[name] * self.diagonal(name, point[None])[0], kind=spec.kind)
            for name, spec in self.moved.items()
        }

    def distance(self, one: Tensor, other: Tensor | None = None) -> float:
        """The Frobenius norm of the difference of two points' deltas; of a point's delta if alone."""
        squares = 0.0
        for name, a in self.a.items():
            change = self.diagonal(name, one[None])[0].double()
            if other is not None:
                change = change - self.diagonal(name, other[None])[0].double()
            b, wide = self.b[name].double() * change, a.double()
            squares += ((b.T @ b) * (wide @ wide.T)).sum().item()
        return sqrt(max(0.0, squares))

    def tensors(self) -> dict[str, Tensor]:
        """The map as tensors of a state, but for its start; see :meth:`of_state`."""
        found: dict[str, Tensor] = {}
        for name in self.specs:
            key_a, key_b = factor_names(name)
            found |= {key_a: self.a[name], key_b: self.b[name]}
            found |= {f"{name}.index": self.index[name], f"{name}.fixed": self.fixed[name]}
        return found

    @classmethod
    def of_state(cls, state: State, start: Tensor) -> Coordinates:
        """The map that a state holds.

        Raises:
            ProtocolError: a tensor of a module is missing.
        """
        parts = [
            [state.tensor(key).cpu() for key in (*factor_names(name), f"{name}.index", f"{name}.fixed")]
            for name in state.template
        ]
        a, b, index, fixed = (
            dict(zip(state.template, part, strict=True)) for part in zip(*parts, strict=True)
        )
        return cls(state.template, a, b, index, fixed, start)


class AtPoints(Population):
    """Members at some points: they share A, and their B differ by a diagonal.

    Args:
        coordinates: the map.
        points: ``[N, d]`` float64.
        ids: one name each.
        parents: for each the ids that it came from.
    """

    def __init__(
        self,
        coordinates: Coordinates,
        points: Tensor,
        ids: Sequence[str],
        parents: Sequence[tuple[str, ...]] = (),
    ) -> None:
        self.specs, self.ids, self.parents = coordinates.moved, tuple(ids), tuple(parents)
        self.ranks = {name: len(coordinates.a[name]) for name in self.specs}
        self._map, self._points = coordinates, points

    def block(self, members: Sequence[int]) -> dict[str, Stack]:
        """See :meth:`Population.block`; each member is a group of its own."""
        points, stacks = self._points[list(members)], {}
        for name, spec in self.specs.items():
            diagonal = self._map.diagonal(name, points)
            a = self._map.a[name].expand(len(members), -1, -1)
            stacks[name] = Stack(a, self._map.b[name] * diagonal[:, None, :], kind=spec.kind)
        return stacks


def random_directions(template: Mapping[str, ModuleSpec], directions: int, seed: int) -> Coordinates:
    """Fixed random orthonormal directions ``u_k v_k^T`` in every module, starting at a delta of zero.

    Args:
        template: the shapes of the modules.
        directions: r, how many in each module; at most its smaller side.
        seed: they follow from it.

    Raises:
        ProtocolError: the template names no module.
    """
    check_start(template, None)
    a, b = {}, {}
    for name, spec in template.items():
        rank = min(directions, spec.d_out, spec.d_in)
        unit = sqrt(spec.d_out * spec.d_in / rank)
        a[name] = _orthonormal(spec.d_in, rank, seed, f"{name}/v").T.float().contiguous()
        b[name] = (_orthonormal(spec.d_out, rank, seed, f"{name}/u") * unit).float().contiguous()
    return _counted(template, a, b, {name: [0.0] * len(a[name]) for name in a}, directions)


def singular_values(template: Mapping[str, ModuleSpec], start: Adapter, directions: int) -> Coordinates:
    """The largest singular values of an adapter's deltas, in units of the largest of their module.

    Args:
        template: the shapes of the modules.
        start: the adapter; modules that it lacks have no coordinates and stay as in the base.
        directions: how many in each module are coordinates; the smaller ones stay as they are.

    Raises:
        ProtocolError: the template names no module.
        AdapterError: the adapter does not fit the template, is a DoRA, or its delta is zero.
    """
    import torch

    check_start(template, start)
    a = {name: torch.zeros(0, spec.d_in) for name, spec in template.items()}
    b = {name: torch.zeros(spec.d_out, 0) for name, spec in template.items()}
    values: dict[str, list[float]] = {name: [] for name in template}
    for name, factors in start.modules.items():
        left = torch.linalg.qr(factors.b.double() * factors.scale)
        right = torch.linalg.qr(factors.a.double().T)
        u, s, v = torch.linalg.svd(left.R @ right.R.T)
        kept = s > _ZERO * s.max()
        a[name] = (v[: len(s)][kept] @ right.Q.T).float().contiguous()
        b[name] = (left.Q @ u[:, : len(s)][:, kept] * s.max()).float().contiguous()
        values[name] = (s[kept] / s.max()).tolist()
    if not any(values.values()):
        raise AdapterError(
            "the start adapter's delta is zero: it has no singular values", mend="leave the start out"
        )
    return _counted(template, a, b, values, directions)


def merge_weights(adapters: Sequence[Adapter]) -> Coordinates:
    """The weights of a sum of adapters: ``delta(x) = sum_k x_k delta_k`` exactly, starting at their mean.

    Args:
        adapters: K plain LoRAs of one base, of any ranks; a module that one lacks is zero there.

    Raises:
        AdapterError: no adapters, one with DoRA's magnitudes, or shapes that disagree on a module.
    """
    import torch

    if not adapters:
        raise AdapterError("a merge needs at least one adapter")
    specs: dict[str, ModuleSpec] = {}
    for adapter in adapters:
        for name, factors in adapter.modules.items():
            if specs.setdefault(name, factors.spec) != factors.spec:
                raise AdapterError(
                    f"{adapter.name} has {factors.spec} where another adapter has {specs[name]}",
                    where=name,
                    mend="they belong to different bases",
                )
            if factors.magnitude is not None:
                raise AdapterError(
                    f"{adapter.name} is a DoRA adapter, whose delta is not linear in weights",
                    where=name,
                    mend="give LoRAs",
                )
    a, b, index = {}, {}, {}
    for name in specs:
        parts = [(k, adapter.modules[name]) for k, adapter in enumerate(adapters) if name in adapter.modules]
        a[name] = torch.cat([factors.a for _, factors in parts])
        b[name] = torch.cat([factors.b * factors.scale for _, factors in parts], dim=1)
        index[name] = torch.cat([torch.full((factors.rank,), k) for k, factors in parts])
    fixed = {name: torch.zeros(len(a[name]), dtype=torch.float64) for name in specs}
    mean = torch.full((len(adapters),), 1 / len(adapters), dtype=torch.float64)
    return Coordinates(specs, a, b, index, fixed, mean)


def _counted(
    specs: Mapping[str, ModuleSpec],
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    values: Mapping[str, list[float]],
    directions: int,
) -> Coordinates:
    """The first ``directions`` of each module as coordinates of their own, the others fixed."""
    import torch

    index, fixed = {}, {}
    start: list[float] = []
    for name, value in values.items():
        free = min(directions, len(value))
        index[name] = torch.full((len(value),), _FIXED, dtype=torch.int64)
        index[name][:free] = torch.arange(len(start), len(start) + free)
        fixed[name] = torch.tensor([0.0] * free + value[free:], dtype=torch.float64)
        start += value[:free]
    return Coordinates(specs, a, b, index, fixed, torch.tensor(start, dtype=torch.float64))


def _orthonormal(length: int, count: int, seed: int, name: str) -> Tensor:
    """``[length, count]`` float64: random orthonormal columns."""
    import torch

    drawn = normal(np.empty((length, count), np.float32), seed=seed, tensor=name, purpose="directions")
    return torch.linalg.qr(torch.from_numpy(drawn).double()).Q
