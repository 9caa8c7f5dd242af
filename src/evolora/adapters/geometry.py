"""The geometry of low-rank deltas, exactly and from the factors alone.

For deltas ``D = s B A`` of one module, ``<D1, D2> = s1 s2 sum((B1^T B2) * (A1 A2^T))``: only r x r matrices
are formed, in float64. Singular values come from QR of the factors and an SVD of the r x r core. An adapter
is the direct sum of its modules; a module that one of two adapters lacks has a zero delta there. Everything
depends on the deltas only, never on how they are factored (signs, rotations, rank padding, alpha).

For a DoRA adapter the delta here is ``s B A`` alone: the magnitudes act on ``W + s B A`` and need the base
(``weight_norms``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evolora.adapters.adapter import Adapter, Factors, ModuleSpec
from evolora.errors import AdapterError

if TYPE_CHECKING:
    from torch import Tensor

_COLUMNS = 4096  # of a Gram matrix at once: an embedding's factors are long, and float64 doubles them


def gram(adapters: Sequence[Adapter]) -> Tensor:
    """Inner products of the adapters' deltas (Frobenius, summed over modules): ``[N, N]``, float64.

    Raises:
        AdapterError: two adapters disagree on the shape of a module.
    """
    import torch

    total = torch.zeros(len(adapters), len(adapters), dtype=torch.float64)
    for name in _specs(adapters):
        members = [
            (i, adapter.modules[name]) for i, adapter in enumerate(adapters) if name in adapter.modules
        ]
        owner = torch.cat([torch.full((factors.rank,), i) for i, factors in members])
        scales = torch.cat([torch.full((f.rank,), f.scale, dtype=torch.float64) for _, f in members])
        core = _products([f.a for _, f in members]) * _products([f.b.T for _, f in members])
        core *= scales[:, None] * scales
        rows = torch.zeros(len(adapters), len(owner), dtype=torch.float64).index_add_(0, owner, core)
        total.index_add_(1, owner, rows)
    return (total + total.T) / 2


def norm(adapter: Adapter) -> float:
    """The Frobenius norm of all deltas together."""
    return float(gram([adapter])[0, 0].clamp_min(0).sqrt())


def module_norms(adapter: Adapter) -> dict[str, float]:
    """The Frobenius norm of each module's delta."""
    return {name: norm(Adapter({name: factors})) for name, factors in adapter.modules.items()}


def inner(a: Adapter, b: Adapter) -> float:
    """The inner product of two adapters' deltas (Frobenius, summed over modules)."""
    return float(gram([a, b])[0, 1])


def cosine(a: Adapter, b: Adapter) -> float:
    """The cosine of the angle between two adapters' deltas, in [-1, 1]; nan where one of them is zero."""
    return float(cosine_matrix([a, b])[0, 1])


def cosine_matrix(adapters: Sequence[Adapter]) -> Tensor:
    """Cosines of the angles between all pairs: ``[N, N]``, float64; nan in the row of a zero delta."""
    products = gram(adapters)
    norms = products.diagonal().clamp_min(0).sqrt()
    cosines = (products / (norms[:, None] * norms)).clamp(-1, 1)
    cosines.diagonal()[norms > 0] = 1
    return cosines


def distance(a: Adapter, b: Adapter) -> float:
    """The Frobenius norm of the difference of two adapters' deltas.

    From the difference's own factors: ``|a|^2 + |b|^2 - 2<a, b>`` loses half the digits between twins.
    """
    import torch

    total = 0.0
    for name in _specs([a, b]):
        parts = [
            (f, sign)
            for f, sign in ((a.modules.get(name), 1.0), (b.modules.get(name), -1.0))
            if f is not None
        ]
        up = torch.cat([f.b.double() * (sign * f.scale) for f, sign in parts], 1)
        down = torch.cat([f.a.double() for f, _ in parts])
        total += float(_core(up, down).square().sum())
    return total**0.5


def spectrum(factors: Factors) -> Tensor:
    """The singular values of a delta, largest first: ``[min(r, d_out, d_in)]``, float64."""
    import torch

    return torch.linalg.svdvals(_core(factors.b.double() * factors.scale, factors.a.double()))


def stable_rank(singular_values: Tensor) -> float:
    """``|D|_F^2 / |D|_2^2``, at most the rank; 0 for a zero delta."""
    largest = float(singular_values.max()) if len(singular_values) else 0.0
    return float((singular_values / largest).square().sum()) if largest > 0 else 0.0


def effective_rank(singular_values: Tensor) -> float:
    """The exponential of the normalised singular values' entropy (Roy & Vetterli 2007); 0 if all are 0."""
    import torch

    total = float(singular_values.sum())
    return float(torch.special.entr(singular_values / total).sum().exp()) if total > 0 else 0.0


def weight_norms(weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """DoRA's norms ``||W + B A||`` of each output channel (arXiv 2402.09353), without forming ``B A``.

    ``|w + b A|^2 = |w|^2 + b . (2 A w + (A A^T) b)`` for a row w of W and b of B.

    Args:
        weight: the frozen ``[d_out, d_in]`` (a Conv1D's or an embedding's transposed).
        a: ``[r, d_in]``, or a stack ``[g, r, d_in]``. Where that is one A under g names (``expand``), its
            products with W and itself are computed once.
        b: ``[d_out, r]`` or ``[g, d_out, r]``, the scale folded in.

    Returns:
        ``[d_out]`` or ``[g, d_out]``, in ``a``'s dtype; the sums run in float64.
    """
    import torch

    stacked_a, stacked_b = (a, b) if a.ndim == 3 else (a[None], b[None])
    if stacked_a.stride(0) == 0:
        stacked_a = stacked_a[:1]
    groups, rank, d_in = stacked_a.shape
    weight = weight.to(a.dtype)
    cross = (
        (weight @ stacked_a.reshape(groups * rank, d_in).T)
        .view(len(weight), groups, rank)
        .transpose(0, 1)
        .double()
    )
    wide = stacked_b.double()
    square = torch.linalg.vector_norm(weight, dim=1, dtype=torch.float64).square()
    core = (stacked_a @ stacked_a.transpose(1, 2)).double()
    square = square + (wide * (2 * cross + wide @ core)).sum(-1)
    norms = square.clamp_min(0).sqrt().to(a.dtype)
    return norms if a.ndim == 3 else norms[0]


def _specs(adapters: Sequence[Adapter]) -> dict[str, ModuleSpec]:
    specs: dict[str, ModuleSpec] = {}
    for adapter in adapters:
        for name, spec in adapter.specs.items():
            if specs.setdefault(name, spec) != spec:
                raise AdapterError(
                    f"{adapter.name} has {spec} where another adapter has {specs[name]}",
                    where=name,
                    mend="they belong to different bases",
                )
    return specs


def _products(parts: Sequence[Tensor]) -> Tensor:
    """Inner products of all rows of ``parts`` (each ``[r, d]``), in float64."""
    import torch

    length, rows = parts[0].shape[1], sum(len(part) for part in parts)
    total = torch.zeros(rows, rows, dtype=torch.float64, device=parts[0].device)
    for start in range(0, length, _COLUMNS):
        block = torch.cat([part[:, start : start + _COLUMNS].double() for part in parts])
        total.addmm_(block, block.T)
    return total.cpu()


def _core(up: Tensor, down: Tensor) -> Tensor:
    """The small matrix with the singular values of ``up @ down``."""
    import torch

    return torch.linalg.qr(up).R @ torch.linalg.qr(down.T).R.T
