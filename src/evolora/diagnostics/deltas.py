"""Deltas as diagnostics read them: module to low-rank factors or to a dense matrix, block by block.

A search on the weights ends at dense deltas, everything else at factors; each diagnostic takes both, and
never holds more than a block of rows of what it would have to multiply out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from evolora.adapters import Adapter, Factors, Population
from evolora.adapters.geometry import module_norms
from evolora.errors import AdapterError, ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.engine import Base

    Delta = Factors | Tensor
    Deltas = Mapping[str, Delta]

_ENTRIES = 2_000_000  # of a block; a few float64 copies of it are held at once


def deltas_of(members: Adapter | Population, member: int = 0) -> dict[str, Delta]:
    """What one member adds to each module: factors where it has them, dense where its population does.

    Args:
        members: an adapter, or a population.
        member: which one of the population.
    """
    if isinstance(members, Adapter):
        return dict(members.modules)
    found: dict[str, Delta] = dict(members.shared)
    for name, stack in members.block([member]).items():
        b = stack.b[0] if stack.coefficient is None else stack.b[0] * stack.coefficient[0]
        if name in found:
            if b.any():
                found[name] = members.shared[name].cpu() + (b if stack.a is None else b @ stack.a[0])
        elif stack.a is None:
            found[name] = b
        else:
            plain = stack.magnitude is None or bool(stack.magnitude[0].isnan().any())
            magnitude = None if plain else stack.magnitude[0]  # type: ignore[index]
            kind = members.specs[name].kind
            found[name] = Factors(stack.a[0], b, 1.0, magnitude, kind)
    return found


def shape_of(delta: Delta) -> tuple[int, int]:
    """``(d_out, d_in)``."""
    if isinstance(delta, Factors):
        return delta.spec.d_out, delta.spec.d_in
    return delta.shape[0], delta.shape[1]


def dense(deltas: Deltas) -> dict[str, Tensor]:
    """All deltas multiplied out, ``[d_out, d_in]`` on the CPU: only where every entry is needed at once.

    Raises:
        AdapterError: DoRA, whose change of the weights is no such matrix.
    """
    found = {}
    for name, delta in deltas.items():
        if isinstance(delta, Factors) and delta.magnitude is not None:
            raise AdapterError("a DoRA module moves its weight by more than B A", where=name)
        found[name] = (delta.delta() if isinstance(delta, Factors) else delta).cpu()
    return found


def norms(deltas: Deltas) -> dict[str, float]:
    """The Frobenius norm of each module's delta."""
    return {
        name: module_norms(Adapter({name: delta}))[name]
        if isinstance(delta, Factors)
        else delta.double().norm().item()
        for name, delta in deltas.items()
    }


def base_weight(base: Base, name: str) -> Tensor:
    """A module's frozen weight as ``[d_out, d_in]``, in its own dtype (a view).

    Raises:
        ModelError: it is quantised.
    """
    from evolora.engine.structure import plain_weight

    weight = plain_weight(base.model.get_submodule(name))
    if weight is None:
        raise ModelError("its weight is quantised", where=name, mend="load the base unquantised")
    return weight.T if base.structure.specs[name].kind == "embedding" else weight


def changes(weight: Tensor, delta: Delta) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of rows of the weight, and of what the delta changes it by: W and dW, float64 on the CPU.

    ``dW`` is the delta itself, for DoRA (arXiv 2402.09353) ``m (W + B A) / ||W + B A|| - W``, row by row.
    """
    d_out, d_in = shape_of(delta)
    each = max(1, _ENTRIES // d_in)
    for first in range(0, d_out, each):
        part = slice(first, first + each)
        old = weight[part].cpu().double()
        if not isinstance(delta, Factors):
            yield old, delta[part].cpu().double()
            continue
        change = (delta.b[part].double() * delta.scale) @ delta.a.double()
        if delta.magnitude is not None:
            new = old + change
            gain = delta.magnitude[part].double() / new.norm(dim=1)
            change = gain[:, None] * new - old
        yield old, change
