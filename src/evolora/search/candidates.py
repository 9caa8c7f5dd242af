"""A population of LoRA vectors: N candidates' factors, stacked; their inner products, their weighted mean.

A candidate is one vector z of all its factors' entries. Either each has its own A and B, or all have one A in
common and z is B alone: then the delta B A is linear in z, and the mean of the deltas is the delta of the
mean B. Otherwise the mean of N deltas has rank N r, and is a LoRA of rank r only after folding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING

from evolora.adapters import Adapter, Factors, ModuleSpec, Population, Stack, geometry
from evolora.search.factors import bound

if TYPE_CHECKING:
    from torch import Tensor


class Candidates(Population):
    """N candidates over one set of modules.

    Args:
        specs: shapes of the modules.
        a: module to A: ``[N, r, d_in]``, or ``[r, d_in]`` in common.
        b: module to B: ``[N, d_out, r]``.
        ids: one name a candidate.
        parents: for each candidate the ids that it came from; none if not given.
    """

    def __init__(
        self,
        specs: Mapping[str, ModuleSpec],
        a: Mapping[str, Tensor],
        b: Mapping[str, Tensor],
        ids: Sequence[str],
        parents: Sequence[tuple[str, ...]] | None = None,
    ) -> None:
        self.specs, self.a, self.b = specs, a, b
        self.ranks = {name: value.shape[-1] for name, value in b.items()}
        self.ids = tuple(ids)
        self.parents = ((),) * len(self.ids) if parents is None else tuple(parents)

    @property
    def shared_a(self) -> bool:
        """Whether all candidates have one A."""
        return next(iter(self.a.values())).ndim == 2

    def block(self, members: Sequence[int]) -> dict[str, Stack]:
        """See :meth:`Population.block`; each candidate is a group of its own."""
        some, stacks = list(members), {}
        for name, spec in self.specs.items():
            a = self.a[name].expand(len(some), -1, -1) if self.shared_a else self.a[name][some]
            stacks[name] = Stack(a, self.b[name][some], kind=spec.kind)
        return stacks

    def moved(self, a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> Candidates:
        """The same candidates with other factors."""
        return Candidates(self.specs, a, b, self.ids, self.parents)

    def taken(self, parents: Tensor) -> Candidates:
        """Copies: place i holds what place ``parents[i]`` of this population holds."""
        a = self.a if self.shared_a else {name: value[parents] for name, value in self.a.items()}
        return self.moved(a, {name: value[parents] for name, value in self.b.items()})

    def factors(self, member: int) -> dict[str, Factors]:
        """One candidate's factors by module."""
        return {
            name: Factors(
                self.a[name] if self.shared_a else self.a[name][member], self.b[name][member], kind=spec.kind
            )
            for name, spec in self.specs.items()
        }

    def mean(self, weights: Tensor) -> dict[str, Factors]:
        """The weighted mean delta, exactly: of rank r with one A, of rank N r otherwise.

        Args:
            weights: ``[N]``; they may be negative, and need not sum to 1.
        """
        found = {}
        for name, spec in self.specs.items():
            a, b = self.a[name], self.b[name]
            if self.shared_a:
                b = (weights @ b.double().flatten(1)).float().view(b.shape[1:])
            else:
                b = (weights.float()[:, None, None] * b).transpose(0, 1).reshape(spec.d_out, -1)
                a = a.reshape(-1, spec.d_in)
            found[name] = Factors(a, b, kind=spec.kind)
        return found

    def gram(self) -> Tensor:
        """Inner products of the candidates' deltas (Frobenius, over all modules): ``[N, N]``, float64."""
        import torch

        if not self.shared_a:
            return geometry.gram([Adapter(self.factors(i)) for i in range(len(self))])
        total = torch.zeros(len(self), len(self), dtype=torch.float64)
        for name, b in self.b.items():
            a, wide = self.a[name].double(), b.double()
            total += (wide @ (a @ a.T)).flatten(1) @ wide.flatten(1).T
        return (total + total.T) / 2


def diversity(gram: Tensor) -> float:
    """The mean distance of two candidates' deltas, over all pairs, from their inner products ``[N, N]``."""
    import torch

    squares = gram.diagonal()
    distances = (squares[:, None] + squares - 2 * gram).clamp_min(0).sqrt()
    first, second = torch.triu_indices(len(gram), len(gram), 1)
    return distances[first, second].mean().item()


def length(gram: Tensor, weights: Tensor) -> float:
    """The norm of ``sum_i weights[i] delta_i``, from the inner products ``[N, N]``."""
    return sqrt(max(0.0, (weights @ gram @ weights).item()))


def fold(b: Tensor, a: Tensor, rank: int, spec: ModuleSpec) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest product of ``rank`` (Frobenius) to each product of longer factors; no product is formed.

    QR of the factors, then an SVD of the small core, in float64. The new A has orthogonal rows of the norm
    that a random A's have (``first_factors``), whatever the delta is, so that noise on A and noise on B keep
    their units and a delta of zeros can be moved again.

    Args:
        b: ``[..., d_out, k]``.
        a: ``[..., k, d_in]``.
        rank: of the result.
        spec: the module.

    Returns:
        B ``[..., d_out, rank]`` and A ``[..., rank, d_in]``, float32, filled up with zeros where the matrix
        has no such rank; and the squared norm of what is left out, ``[...]`` float64.
    """
    import torch
    from torch.nn.functional import pad

    left, up = torch.linalg.qr(b.double())
    right, down = torch.linalg.qr(a.double().mT)
    u, values, vt = torch.linalg.svd(up @ down.mT, full_matrices=False)
    kept = min(rank, values.shape[-1])
    size = bound(spec) * sqrt(spec.d_in / 3)
    new_b = (left @ (u[..., :kept] * (values[..., None, :kept] / size))).float()
    new_a = (size * (vt[..., :kept, :] @ right.mT)).float()
    lost = values[..., kept:].square().sum(-1)
    return pad(new_b, (0, rank - kept)), pad(new_a, (0, 0, 0, rank - kept)), lost
