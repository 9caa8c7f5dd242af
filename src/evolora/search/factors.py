"""The first factors of an adapter that is searched or trained: random A, zero B, or a given adapter's."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import TYPE_CHECKING

from evolora.adapters import Adapter, Factors, ModuleSpec
from evolora.adapters.noise import uniform
from evolora.errors import AdapterError, ProtocolError
from evolora.search.perturbed import factor_names
from evolora.search.state import State

if TYPE_CHECKING:
    from torch import Tensor


def check_start(template: Mapping[str, ModuleSpec], start: Adapter | None, *, dora: bool = False) -> None:
    """Refuses a template without modules and a start that does not fit it.

    Args:
        template: the shapes of the searched modules.
        start: the adapter to start from, if any.
        dora: whether it must have DoRA's magnitudes; otherwise it must have none.

    Raises:
        ProtocolError: the template names no module.
        AdapterError: the start names a module that the template lacks, has another shape, or is a DoRA where
            a LoRA is wanted, or the other way round.
    """
    if not template:
        raise ProtocolError(
            "a template without modules", mend="choose targets and layers that exist in the base"
        )
    for name, factors in () if start is None else start.modules.items():
        if name not in template:
            raise AdapterError(
                "the start adapter has a module that is not searched",
                where=name,
                mend="widen targets or layers",
            )
        if factors.spec != template[name]:
            raise AdapterError(f"the start adapter has {factors.spec}, the base {template[name]}", where=name)
        if (factors.magnitude is not None) != dora:
            given, wanted = ("LoRA", "DoRA adapter") if dora else ("DoRA adapter", "LoRA")
            raise AdapterError(
                f"a {given} cannot be the start of this method", where=name, mend=f"give a {wanted}"
            )


def first_factors(
    template: Mapping[str, ModuleSpec],
    rank: int,
    seed: int,
    start: Adapter | None = None,
    *,
    dora: bool = False,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A ``[r, d_in]`` and B ``[d_out, r]`` of each module, float32, scale 1.

    A is uniform in +-1 / sqrt(d_in), as PEFT draws it; for an embedding, whose input is one-hot, in +-1. B is
    zero, so that the delta is. A module of the start adapter takes the first rows of A and columns of B, its
    scale folded into B; the others stay random and zero.

    Raises:
        ProtocolError: see ``check_start``.
        AdapterError: see ``check_start``; or the start's rank is larger than ``rank``.
    """
    import numpy as np
    import torch

    check_start(template, start, dora=dora)
    a: dict[str, Tensor] = {}
    b: dict[str, Tensor] = {}
    for name, spec in template.items():
        draws = uniform(rank * spec.d_in, seed=seed, tensor=name, purpose="init") * 2 - 1
        a[name] = torch.from_numpy((draws * bound(spec)).astype(np.float32).reshape(rank, spec.d_in))
        b[name] = torch.zeros(spec.d_out, rank)
        given = None if start is None else start.modules.get(name)
        if given is not None:
            if given.rank > rank:
                raise AdapterError(
                    f"the start adapter has rank {given.rank}, above {rank}",
                    where=name,
                    mend="raise the rank",
                )
            a[name][: given.rank] = given.a
            b[name][:, : given.rank] = given.b * given.scale
    return a, b


def bound(spec: ModuleSpec) -> float:
    """The largest absolute entry of a random A."""
    return 1.0 if spec.kind == "embedding" else 1 / sqrt(spec.d_in)


def split(state: State) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A and B of each module, where a state holds them under ``factor_names``."""
    keys = {name: factor_names(name) for name in state.template}
    a = {name: state.tensor(key) for name, (key, _) in keys.items()}
    return a, {name: state.tensor(key) for name, (_, key) in keys.items()}


def product_norm(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Frobenius norm of ``b @ a`` over all modules, from the Gram matrices of the factors."""
    squares = sum(
        ((b[name].T @ b[name]).double() * (a[name] @ a[name].T).double()).sum().item() for name in a
    )
    return sqrt(max(0.0, squares))


def assemble(
    template: Mapping[str, ModuleSpec], a: Mapping[str, Tensor], b: Mapping[str, Tensor], scale: float = 1.0
) -> dict[str, Factors]:
    """The factors as an adapter's modules."""
    return {
        name: Factors(a[name].detach().cpu(), b[name].detach().cpu(), scale, kind=spec.kind)
        for name, spec in template.items()
    }
