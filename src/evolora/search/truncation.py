"""The best low-rank factors of a dense delta (Eckart and Young), with what they leave out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from evolora.adapters import Factors

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.adapters.adapter import Kind


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

    @property
    def error(self) -> float:
        """``lost / norm``, 0 for a delta of zeros."""
        return self.lost / self.norm if self.norm > 0 else 0.0


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
