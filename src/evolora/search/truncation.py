"""The best low-rank factors of a dense delta (Eckart and Young), with what they leave out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

from evolora.adapters import Factors, ModuleSpec

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.adapters.adapter import Kind


TOLERANCE = 0.1  # of the delta's norm, that an adapter of automatic rank may leave out
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # those that vLLM serves


@dataclass(frozen=True, eq=False)
class Truncation:
    """A delta at a stated rank.

    Attributes:
        factors: ``b @ a`` is the nearest matrix of that rank (Frobenius); both carry the root of the
            spectrum.
        norm: Frobenius norm of the whole delta.
        lost: Frobenius norm of what the factors leave out.
    """

    factors: Factors
    norm: float
    lost: float

    def narrow(self, rank: int) -> Truncation:
        """The same delta at a lower rank; no decomposition is made again."""
        a, b = self.factors.a, self.factors.b
        dropped = (
            a[rank:].double().square().sum(1).square().sum().item()
        )  # a row's squared norm is the singular value
        factors = Factors(a[:rank].clone(), b[:, :rank].clone(), kind=self.factors.kind)
        return Truncation(factors, self.norm, sqrt(self.lost**2 + dropped))

    @property
    def error(self) -> float:
        """``lost / norm``, 0 for a delta of zeros."""
        return self.lost / self.norm if self.norm > 0 else 0.0


def relative_error(parts: Iterable[Truncation]) -> float:
    """What all modules together leave out, over their common norm (Frobenius)."""
    known = list(parts)
    norm = sqrt(sum(part.norm**2 for part in known))
    return sqrt(sum(part.lost**2 for part in known)) / norm if norm > 0 else 0.0


def narrow_to(parts: Mapping[str, Truncation], tolerance: float) -> dict[str, Truncation]:
    """All modules at one rank: the smallest of ``RANKS`` at which the relative error is within ``tolerance``.

    Args:
        parts: the deltas at full rank.
        tolerance: largest relative error; where no rank of the list reaches it, the largest is taken.
    """
    for rank in RANKS:
        narrowed = {name: part.narrow(rank) for name, part in parts.items()}
        if relative_error(narrowed.values()) <= tolerance:
            break
    return narrowed


def compress(
    deltas: Mapping[str, Tensor],
    template: Mapping[str, ModuleSpec],
    rank: int | None,
    kept: Mapping[str, Factors] | None = None,
) -> tuple[dict[str, Factors], dict[str, Any]]:
    """Dense deltas as an adapter's modules, and what that leaves out.

    Args:
        deltas: module to ``[d_out, d_in]``.
        template: the modules' kinds.
        rank: of every module; None chooses the smallest of ``RANKS`` that leaves out at most a tenth.
        kept: factors that are part of the deltas and stay whole, where the rank has room for them: what a
            search began at is small beside its noise, and would be the first to be left out.

    Returns:
        The factors, and ``truncation_error`` (relative, Frobenius, over all modules) with ``truncation``
        (that of each module) for the provenance.
    """
    kept = kept or {}
    room = max((factors.rank for factors in kept.values()), default=0)
    if rank is not None and rank <= room:
        kept, room = {}, 0
    parts = {}
    for name, delta in deltas.items():
        rest = delta - kept[name].delta() if name in kept else delta
        parts[name] = truncate(rest, rank - room if rank else max(delta.shape), template[name].kind)
    if rank is None:
        parts = narrow_to(parts, TOLERANCE)
    norms = {name: delta.double().norm().item() for name, delta in deltas.items()}
    whole = sqrt(sum(norm**2 for norm in norms.values()))
    left_out = sqrt(sum(part.lost**2 for part in parts.values()))
    lost = {
        "truncation_error": left_out / whole if whole > 0 else 0.0,
        "truncation": {
            name: part.lost / norms[name] if norms[name] > 0 else 0.0 for name, part in parts.items()
        },
    }
    return {name: _beside(kept.get(name), part.factors) for name, part in parts.items()}, lost


def _beside(kept: Factors | None, rest: Factors) -> Factors:
    """The sum of two deltas as one product."""
    import torch

    if kept is None:
        return rest
    a = torch.cat([kept.a.to(rest.a), rest.a])
    b = torch.cat([(kept.b * kept.scale).to(rest.b), rest.b], dim=1)
    return Factors(a, b, kind=rest.kind)


def truncate(delta: Tensor, rank: int, kind: Kind = "linear") -> Truncation:
    """Truncates a dense delta ``[d_out, d_in]`` to ``rank`` (at most its smaller side).

    The eigenvectors of the smaller Gram matrix, in float64: singular values to about 1e-8 of the largest,
    which is below the rounding of a float32 delta, and much faster than a full SVD where one side is a
    vocabulary.
    """
    import torch

    exact = delta.detach().double()
    if exact.shape[0] > exact.shape[1]:
        flipped = truncate(exact.T, rank, kind)
        factors = Factors(flipped.factors.b.T.contiguous(), flipped.factors.a.T.contiguous(), kind=kind)
        return Truncation(factors, flipped.norm, flipped.lost)
    squares, vectors = torch.linalg.eigh(exact @ exact.T)
    squares = squares.flip(0).clamp(min=0)
    kept = vectors.flip(1)[:, : min(rank, len(squares))]
    root = squares[: kept.shape[1]].sqrt().sqrt()
    inverse = torch.where(root > 0, 1 / root, torch.zeros_like(root))
    a = (inverse[:, None] * (kept.T @ exact)).float()
    b = (kept * root).float()
    lost = squares[kept.shape[1] :].sum().sqrt().item()
    return Truncation(Factors(a, b, kind=kind), squares.sum().sqrt().item(), lost)
