"""Gaussian perturbations of matrices, of low rank or full, and weighted sums of them, from counted noise.

Direction j of a matrix of shape ``[d_out, d_in]`` is

    E_j = B_j A_j / sqrt(r),    B_j [d_out, r], A_j [r, d_in] with independent unit normal entries,

so that each entry of E_j has mean 0 and variance 1 at any rank r (Evolution Strategies at the Hyperscale,
arXiv 2511.16652). At full rank E_j has independent unit normal entries itself. Nothing is stored: a direction
is made again from (seed, step, j, name of the matrix) wherever it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from evolora.adapters import DENSE
from evolora.adapters.noise import normal

if TYPE_CHECKING:
    from torch import Tensor

_CHUNK = 1 << 24  # numbers of noise held at once while summing


@dataclass(frozen=True)
class Perturbation:
    """The noise of one step of one search.

    Attributes:
        seed: the search's seed.
        step: the step it perturbs.
        rank: r, the rank of each direction.
    """

    seed: int
    step: int
    rank: int

    @property
    def gain(self) -> float:
        """``1 / sqrt(r)``: what the product ``B_j A_j`` is multiplied with to have unit variance."""
        return 1 / sqrt(self.rank)

    def factors(self, name: str, shape: tuple[int, int], directions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The factors of some directions of one matrix.

        Args:
            name: the matrix.
            shape: ``(d_out, d_in)``.
            directions: which ones.

        Returns:
            ``a [n, r, d_in]`` and ``b [n, d_out, r]``, float32 on the CPU, contiguous, unit variance.
        """
        import torch

        d_out, d_in = shape
        a = np.empty((len(directions), self.rank, d_in), np.float32)
        b = np.empty((len(directions), d_out, self.rank), np.float32)
        for i, direction in enumerate(directions):
            normal(a[i], seed=self.seed, step=self.step, pair=direction, tensor=f"{name}/a")
            normal(b[i], seed=self.seed, step=self.step, pair=direction, tensor=f"{name}/b")
        return torch.from_numpy(a), torch.from_numpy(b)

    def dense(self, name: str, shape: tuple[int, int], directions: Sequence[int]) -> Tensor:
        """Some directions of a small matrix as they are: ``[n, d_out, d_in]``, unit variance.

        Summed outer product by outer product, so that the bits do not depend on how many are made at once.
        """
        a, b = self.factors(name, shape, directions)
        total = b[:, :, :1] * a[:, :1]
        for k in range(1, self.rank):
            total += b[:, :, k, None] * a[:, k, None]
        return total.mul_(self.gain)

    def combine(self, name: str, shape: tuple[int, int], weights: Tensor, device: object = "cpu") -> Tensor:
        """``sum_j weights[j] E_j``, as one product ``[d_out, n r] x [n r, d_in]``.

        Args:
            name: the matrix.
            shape: ``(d_out, d_in)``.
            weights: ``[n]`` float32; directions of weight 0 cost nothing.
            device: where the product is computed.

        Returns:
            ``[d_out, d_in]`` float32, newly made.
        """
        import torch

        d_out, d_in = shape
        directions = weights.nonzero().flatten().tolist()
        total = torch.zeros(shape, device=device)  # type: ignore[call-overload]
        each = max(1, _CHUNK // (self.rank * (d_out + d_in)))
        for first in range(0, len(directions), each):
            some = directions[first : first + each]
            a, b = self.factors(name, shape, some)
            b *= (weights[some] * self.gain)[:, None, None]
            left = b.transpose(0, 1).reshape(d_out, -1)
            total.addmm_(left.to(total.device), a.view(-1, d_in).to(total.device))
        return total


@dataclass(frozen=True)
class FullRank:
    """The same with dense noise: every entry of E_j is its own unit normal deviate.

    Attributes:
        seed: the search's seed.
        step: the step it perturbs.
    """

    seed: int
    step: int
    rank: ClassVar[int] = DENSE
    gain: ClassVar[float] = 1.0

    def factors(self, name: str, shape: tuple[int, int], directions: Sequence[int]) -> tuple[None, Tensor]:
        """No A, and the directions themselves: ``[n, d_out, d_in]``; see :class:`Perturbation`."""
        return None, self.dense(name, shape, directions)

    def dense(self, name: str, shape: tuple[int, int], directions: Sequence[int]) -> Tensor:
        """Some directions of one matrix: ``[n, d_out, d_in]``, float32 on the CPU, unit variance."""
        import torch

        out = np.empty((len(directions), *shape), np.float32)
        for i, direction in enumerate(directions):
            normal(out[i], seed=self.seed, step=self.step, pair=direction, tensor=f"{name}/e")
        return torch.from_numpy(out)

    def combine(self, name: str, shape: tuple[int, int], weights: Tensor, device: object = "cpu") -> Tensor:
        """``sum_j weights[j] E_j``: ``[d_out, d_in]`` float32, one direction in memory at a time."""
        import torch

        total = torch.zeros(shape, device=device)  # type: ignore[call-overload]
        for direction in weights.nonzero().flatten().tolist():
            noise = self.dense(name, shape, [direction])[0].to(total.device)
            total.add_(noise, alpha=float(weights[direction]))
        return total


Noise = Perturbation | FullRank
