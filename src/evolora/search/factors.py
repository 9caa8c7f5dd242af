"""The factors of one adapter that is searched or trained, as a state holds them."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import TYPE_CHECKING

from evolora.adapters import Factors, ModuleSpec
from evolora.search.perturbed import factor_names
from evolora.search.state import State

if TYPE_CHECKING:
    from torch import Tensor


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
