"""The spectra of deltas: how many directions an update really has.

For singular values s of a delta D:

    stable rank       sum s^2 / max s^2 = ||D||_F^2 / ||D||_2^2
    effective rank    exp(entropy of s / sum s)     (Roy & Vetterli, EUSIPCO 2007)
    energy of top k   sum of the k largest s^2 / sum s^2

All modules together are the direct sum of their deltas: its singular values are those of all modules. For
DoRA the spectrum is that of ``B A``. From factors all this is exact (QR); of a dense delta the eigenvalues of
its smaller Gram matrix in float64 give the singular values to about 1e-8 of the largest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evolora.adapters import Factors
from evolora.adapters.geometry import effective_rank, spectrum, stable_rank

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.diagnostics.deltas import Delta, Deltas

TOP = (1, 4, 16)
_COLUMNS = 4096  # of a dense delta in float64 at once


@dataclass(frozen=True)
class Spectrum:
    """One delta's spectrum in numbers; all are 0 for a delta of zeros.

    Attributes:
        norm: Frobenius.
        stable_rank: at most the rank; small where one direction dominates.
        effective_rank: at most the rank; counts the tail that the stable rank does not see.
        energy: k to the share of ``||D||_F^2`` in the k largest singular values.
    """

    norm: float
    stable_rank: float
    effective_rank: float
    energy: dict[int, float]


@dataclass(frozen=True)
class Spectra:
    """The spectrum of each module, and of their direct sum."""

    modules: dict[str, Spectrum]
    whole: Spectrum


def spectra_of(deltas: Deltas, top: Sequence[int] = TOP) -> Spectra:
    """The spectra of all modules and of the whole."""
    import torch

    values = {name: singular_values(delta) for name, delta in deltas.items()}
    each: Mapping[str, Spectrum] = {name: summary(found, top) for name, found in values.items()}
    whole = torch.cat(list(values.values())) if values else torch.zeros(0, dtype=torch.float64)
    return Spectra(dict(each), summary(whole.sort(descending=True).values, top))


def summary(values: Tensor, top: Sequence[int] = TOP) -> Spectrum:
    """What the singular values (any order) say."""
    squares = values.double().square().sort(descending=True).values
    total = squares.sum().item()
    energy = {k: squares[:k].sum().item() / total if total > 0 else 0.0 for k in top}
    return Spectrum(total**0.5, stable_rank(values), effective_rank(values), energy)


def singular_values(delta: Delta) -> Tensor:
    """Largest first, float64 on the CPU; the zeros beyond the rank of factors are left out."""
    import torch

    if isinstance(delta, Factors):
        return spectrum(delta).cpu()
    wide = delta if delta.shape[0] <= delta.shape[1] else delta.T
    gram = torch.zeros(len(wide), len(wide), dtype=torch.float64)
    for first in range(0, wide.shape[1], _COLUMNS):
        block = wide[:, first : first + _COLUMNS].cpu().double()
        gram.addmm_(block, block.T)
    return torch.linalg.eigvalsh(gram).clamp(min=0).sqrt().flip(0)
