"""What makes new candidates in replicator search: mutations, and recombination to the mean.

A mutation is ``z_i <- z_i + s xi_i`` with ``s = sqrt(2 D dt)``:

    isotropic    xi ~ N(0, U^2), U diagonal: 1 for an entry of B, ``bound`` (1 / sqrt(d_in), the size of its
                 random entries) for one of A, as EGGROLL's noise on factors has it
    covariance   a share c of the variance follows the population (zbar: the weighted mean, g ~ N(0, 1)):
                 xi_i = sqrt(c) k sum_j sqrt(w_j) (z_j - zbar) g_ij + sqrt(1 - c) isotropic,
                 whose first part has the covariance k^2 sum_j w_j (z_j - zbar)(z_j - zbar)^T; k makes its
                 trace, in units of U, that of the isotropic one, so that D means the same. It has rank N - 1:
                 with c = 1 the population never leaves the plane through its first candidates
    delta        the product moves, not its factors: ``B A + s bound E``, E = B' A' / sqrt(r) of rank r with
                 entries of unit variance, folded back to rank r: the nearest matrix of that rank
                 (Frobenius). A delta that is large against the noise is moved within its tangent space
                 alone, about r (d_out + d_in - r) / (d_out d_in) of E's variance; the rest is left out
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from evolora.adapters import Adapter, geometry
from evolora.adapters.noise import normal
from evolora.search.candidates import Candidates, fold
from evolora.search.factors import bound
from evolora.search.perturbed import factor_names

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Deviates:
    """Unit normal noise of one step, one array a candidate.

    Attributes:
        seed: the search's seed.
        step: the step.
        purpose: what it is for.
        members: N.
        antithetic: candidates 2j and 2j + 1 get the same with signs + and -.
    """

    seed: int
    step: int
    purpose: str
    members: int
    antithetic: bool = False

    def of(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """``[N, *shape]`` float32."""
        import torch

        out = np.empty((self.members, *shape), np.float32)
        group = 2 if self.antithetic else 1
        for i in range(0, self.members, group):
            normal(out[i], seed=self.seed, step=self.step, pair=i // group, tensor=name, purpose=self.purpose)
        if self.antithetic:
            np.negative(out[0::2], out=out[1::2])
        return torch.from_numpy(out)


def isotropic(crowd: Candidates, size: float, noise: Deviates) -> Candidates:
    """Independent noise on every entry; ``size`` is s, in units of U."""
    a, b = dict(crowd.a), {}
    for name, spec in crowd.specs.items():
        key_a, key_b = factor_names(name)
        b[name] = crowd.b[name] + size * noise.of(key_b, tuple(crowd.b[name].shape[1:]))
        if not crowd.shared_a:
            a[name] = a[name] + size * bound(spec) * noise.of(key_a, tuple(a[name].shape[1:]))
    return crowd.moved(a, b)


def covariance(crowd: Candidates, size: float, noise: Deviates, weights: Tensor, share: float) -> Candidates:
    """Noise that follows the weighted population for a ``share`` of its variance."""
    sides = [(crowd.b, False)] if crowd.shared_a else [(crowd.b, False), (crowd.a, True)]
    weighed = weights.float()
    trace, count, apart = 0.0, 0, []
    for side, is_a in sides:
        away = {name: _from_mean(z, weighed) for name, z in side.items()}
        for name, z in away.items():
            unit = bound(crowd.specs[name]) if is_a else 1.0
            trace += (weights @ z.double().square().flatten(1).sum(1)).item() / unit**2
            count += z[0].numel()
        apart.append(away)
    if trace == 0:  # twins alone: there is no shape to follow
        return isotropic(crowd, size, noise)
    mixed = noise.of("coefficients", (len(crowd),)) * (size * sqrt(share * count / trace)) * weighed.sqrt()
    rest = isotropic(crowd, size * sqrt(1 - share), noise)
    new = [
        {name: z + (mixed @ away[name].flatten(1)).view(z.shape) for name, z in side.items()}
        for side, away in zip((rest.b, rest.a), apart, strict=False)
    ]
    return crowd.moved(crowd.a if crowd.shared_a else new[1], new[0])


def _from_mean(z: Tensor, weights: Tensor) -> Tensor:
    """``z_i - zbar``; exactly 0 for twins, where a rest of rounding would be blown up to the full trace."""
    away = z - z[:1]
    return away - (weights @ away.flatten(1)).view(z.shape[1:])


def delta(crowd: Candidates, size: float, noise: Deviates) -> tuple[Candidates, float]:
    """Noise on the products, folded back; and the share of its norm that folding left out."""
    import torch

    a, b, lost, whole = {}, {}, 0.0, 0.0
    for name, spec in crowd.specs.items():
        rank = crowd.ranks[name]
        key_a, key_b = factor_names(name)
        a_noise, b_noise = noise.of(key_a, (rank, spec.d_in)), noise.of(key_b, (spec.d_out, rank))
        b_noise *= size * bound(spec) / sqrt(rank)
        whole += ((b_noise.mT @ b_noise).double() * (a_noise @ a_noise.mT).double()).sum().item()
        b[name], a[name], left_out = fold(
            torch.cat([crowd.b[name], b_noise], 2), torch.cat([crowd.a[name], a_noise], 1), rank, spec
        )
        lost += left_out.sum().item()
    return crowd.moved(a, b), sqrt(lost / whole) if whole > 0 else 0.0


def recombined(crowd: Candidates, weights: Tensor) -> tuple[Candidates, float]:
    """All at the weighted mean delta.

    Exact with one A; otherwise folded to the rank, and the relative error (Frobenius) is returned.
    """
    count, lost, whole = len(crowd), 0.0, 0.0
    a, b = dict(crowd.a), {}
    for name, mean in crowd.mean(weights).items():
        new_b = mean.b
        if not crowd.shared_a:
            new_b, new_a, left_out = fold(mean.b, mean.a, crowd.ranks[name], crowd.specs[name])
            a[name] = new_a.expand(count, -1, -1)
            lost += left_out.item()
            whole += geometry.norm(Adapter({name: mean})) ** 2
        b[name] = new_b.expand(count, -1, -1)
    return crowd.moved(a, b), sqrt(lost / whole) if whole > 0 else 0.0
