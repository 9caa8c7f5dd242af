"""What a search begins at: shapes, seed, the adapter to start from; and the first tensors of its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evolora.adapters import Adapter, Factors, ModuleSpec
from evolora.adapters.noise import uniform
from evolora.errors import AdapterError, ProtocolError
from evolora.search.factors import bound
from evolora.search.state import Number, State

if TYPE_CHECKING:
    from torch import Tensor

_START = "start/"


@dataclass(frozen=True, eq=False)
class Origin:
    """What a search begins at.

    Attributes:
        template: the shapes of the modules to adapt.
        seed: every random choice follows from it.
        start: an adapter to start from, if any.
        norms: module to the norms of its base weight ``[d_out]``, for methods that need them.
    """

    template: Mapping[str, ModuleSpec]
    seed: int
    start: Adapter | None = None
    norms: Mapping[str, Tensor] | None = None

    def state(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, Number] | None = None) -> State:
        """The state before the first step, with these tensors and numbers."""
        return State(self.template, self.seed, tensors=tensors, numbers=numbers or {})


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
    origin: Origin, rank: int, *, dora: bool = False
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

    check_start(origin.template, origin.start, dora=dora)
    a: dict[str, Tensor] = {}
    b: dict[str, Tensor] = {}
    for name, spec in origin.template.items():
        draws = uniform(rank * spec.d_in, seed=origin.seed, tensor=name, purpose="init") * 2 - 1
        a[name] = torch.from_numpy((draws * bound(spec)).astype(np.float32).reshape(rank, spec.d_in))
        b[name] = torch.zeros(spec.d_out, rank)
        given = None if origin.start is None else origin.start.modules.get(name)
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


def first_deltas(origin: Origin) -> dict[str, Tensor]:
    """The dense delta of each module before the first step: the start's, or zero.

    Raises:
        ProtocolError: see ``check_start``.
        AdapterError: see ``check_start``.
    """
    import torch

    check_start(origin.template, origin.start)
    given = {} if origin.start is None else origin.start.modules
    return {
        name: given[name].delta().float() if name in given else torch.zeros(spec.d_out, spec.d_in)
        for name, spec in origin.template.items()
    }


def start_tensors(start: Adapter | None) -> dict[str, Tensor]:
    """The start's factors for the state, so that no export leaves them out."""
    found: dict[str, Tensor] = {}
    for name, factors in {} if start is None else start.modules.items():
        found |= {
            f"{_START}a/{name}": factors.a.float(),
            f"{_START}b/{name}": (factors.b * factors.scale).float(),
        }
    return found


def kept_start(state: State) -> dict[str, Factors]:
    """What ``start_tensors`` put there."""
    prefix = f"{_START}a/"
    names = [key.removeprefix(prefix) for key in state.tensors if key.startswith(prefix)]
    return {
        name: Factors(
            state.tensor(f"{_START}a/{name}"),
            state.tensor(f"{_START}b/{name}"),
            kind=state.template[name].kind,
        )
        for name in names
    }
