"""What a block of members adds to each module, made ready to run: on the base's device, in its dtype.

DoRA (arXiv 2402.09353) rescales each output channel by ``gain = m / ||W + B A||``, computed from the factors
once per block of members.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evolora.adapters import Stack
from evolora.engine.structure import embedding_scale, plain_weight
from evolora.errors import ModelError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from evolora.engine.base import Base


@dataclass(frozen=True, eq=False)
class Term:
    """One module's part of a block.

    Attributes:
        a: ``[g, r, d_in]``, or None where ``b`` holds dense deltas ``[g, d_out, d_in]``.
        b: ``[g, d_out, r]``, DoRA's gain folded in.
        coefficient: ``[n]`` or None.
        gain: ``[n, d_out]`` or None.
        kind: ``linear`` or ``embedding``.
    """

    a: Tensor | None
    b: Tensor
    coefficient: Tensor | None
    gain: Tensor | None
    kind: str


@dataclass(frozen=True, eq=False)
class Shared:
    """A dense delta common to all members.

    Attributes:
        matrix: ``W + D`` where the module runs on it in place of its own weight, else D; ``[d_out, d_in]``.
        fused: which of the two.
        kind: ``linear`` or ``embedding``.
    """

    matrix: Tensor
    fused: bool
    kind: str


def prepare(base: Base, stacks: Mapping[str, Stack], shared: Mapping[str, Shared]) -> dict[str, Term]:
    """Moves a block to the base's device and dtype, and folds DoRA's gains.

    Raises:
        ModelError: DoRA where its norms cannot be computed: on a module whose weight is no plain float matrix
            (a quantised base), on an embedding, on antithetic pairs, on dense deltas, or on top of a shared
            delta.
    """
    terms = {}
    coefficients: dict[
        int, Tensor
    ] = {}  # one tensor stays one tensor: modules that share an input compare them
    for path, stack in stacks.items():
        a = None if stack.a is None else _onto(base.device, stack.a)
        b = stack.b.to(base.device)
        gain = None
        if stack.magnitude is not None:
            if path in shared or stack.coefficient is not None or a is None:
                raise ModelError(
                    "DoRA cannot stand on a population that shares deltas or factors", where=path
                )
            gain = _gain(base, path, stack, a, b)
            b = b * gain[:, :, None]
            gain = gain.to(base.dtype)
        if stack.kind == "embedding":
            b = b * embedding_scale(base.model.get_submodule(path))
        coefficient = None
        if stack.coefficient is not None:
            key = id(stack.coefficient)
            if key not in coefficients:
                coefficients[key] = stack.coefficient.to(base.device, base.dtype)
            coefficient = coefficients[key]
        a = None if a is None else a.to(base.dtype)
        terms[path] = Term(a, b.to(base.dtype), coefficient, gain, stack.kind)
    return terms


def take(terms: Mapping[str, Term], members: Tensor) -> dict[str, Term]:
    """The terms of some members of the block, each a group of its own where the block has several."""
    coefficients = {id(term.coefficient): term.coefficient for term in terms.values()}
    chosen = {key: None if c is None else c[members] for key, c in coefficients.items()}
    taken = {}
    for path, term in terms.items():
        size = 1 if term.coefficient is None else len(term.coefficient) // len(term.b)
        gain = None if term.gain is None else term.gain[members]
        groups = members // size
        # factors that all members share are shared by those that stay
        groups = groups[:1] if len(term.b) == 1 else groups
        a = None if term.a is None else term.a[groups]
        taken[path] = Term(a, term.b[groups], chosen[id(term.coefficient)], gain, term.kind)
    return taken


def _onto(device: torch.device, a: Tensor) -> Tensor:
    """Moves A; one that all members share (``expand``) travels once and stays one."""
    return a[:1].to(device).expand(a.shape) if a.stride(0) == 0 else a.to(device)


def _gain(base: Base, path: str, stack: Stack, a: Tensor, b: Tensor) -> Tensor:
    import torch

    from evolora.adapters.geometry import weight_norms

    if stack.kind != "linear":
        raise ModelError("DoRA on an embedding is not supported", where=path, mend="use plain LoRA there")
    weight = plain_weight(base.model.get_submodule(path))
    if weight is None:
        raise ModelError(
            "DoRA needs the norms of a plain float weight", where=path, mend="load the base unquantised"
        )
    assert stack.magnitude is not None
    magnitude = stack.magnitude.to(a.device)
    gain = magnitude / weight_norms(weight.float(), a, b)
    return torch.where(magnitude.isnan(), torch.ones_like(gain), gain)


def shared_terms(base: Base, deltas: Mapping[str, Tensor]) -> dict[str, Shared]:
    """Prepares dense deltas ``[d_out, d_in]`` common to all members.

    A float32 ``nn.Linear`` runs on ``W + D`` (a copy; costs nothing per token). Elsewhere ``x D^T`` is a
    product of its own, since a sum in half precision would swallow a small D.
    """
    import torch
    from torch import nn

    ready = {}
    for path, delta in deltas.items():
        module = base.model.get_submodule(path)
        kind = base.structure.specs[path].kind
        delta = delta.to(base.device)
        # an instance's own forward belongs to somebody else's hook (accelerate's, say)
        plain = type(module) is nn.Linear and "forward" not in vars(module)
        if plain and module.weight.dtype == torch.float32:
            ready[path] = Shared(module.weight + delta, True, kind)
        else:
            if kind == "embedding":
                delta = delta * embedding_scale(module)
            ready[path] = Shared(delta.to(base.dtype), False, kind)
    return ready
