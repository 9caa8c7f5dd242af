"""Population layers: every member's low-rank term added to the output of the frozen module.

The base module runs once over all rows, unchanged (so a quantised one works as it is). Rows stand member by member.
The members' terms are two grouped batched products, the second added in place:

    u = x A^T                 [groups, rows of a group, sum of ranks]; one product for modules that share their input
    y += u B^T                in place (baddbmm)

DoRA (arXiv 2402.09353) rescales each output channel: ``y = gain * (y - bias) + bias + (gain B) u`` with
``gain = m / ||W + B A||``, computed from the factors once per block of members.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evolora.adapters import Stack
from evolora.errors import ModelError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from evolora.engine.base import Base


@dataclass(frozen=True, eq=False)
class Term:
    """One module's part of a block, ready to run: on the base's device, in its dtype.

    Attributes:
        a: ``[g, r, d_in]``.
        b: ``[g, d_out, r]``, DoRA's gain folded in.
        coefficient: ``[n]`` or None.
        gain: ``[n, d_out]`` or None.
        kind: ``linear`` or ``embedding``.
    """

    a: Tensor
    b: Tensor
    coefficient: Tensor | None
    gain: Tensor | None
    kind: str

    def take(self, members: Tensor) -> Term:
        """The term of some members of the block, each a group of its own."""
        groups = members
        if self.coefficient is not None:
            groups = members // (len(self.coefficient) // len(self.a))
        coefficient = None if self.coefficient is None else self.coefficient[members]
        gain = None if self.gain is None else self.gain[members]
        return Term(self.a[groups], self.b[groups], coefficient, gain, self.kind)


def prepare(base: Base, stacks: Mapping[str, Stack]) -> dict[str, Term]:
    """Moves a block to the base's device and dtype, and folds DoRA's gains.

    Raises:
        ModelError: DoRA on a module whose weight is no plain float matrix (a quantised base).
    """
    terms = {}
    for path, stack in stacks.items():
        a, b = stack.a.to(base.device), stack.b.to(base.device)
        gain = None
        if stack.magnitude is not None:
            gain = _gain(base, path, stack, a, b)
            b = b * gain[:, :, None]
            gain = gain.to(base.dtype)
        coefficient = None if stack.coefficient is None else stack.coefficient.to(base.device, base.dtype)
        terms[path] = Term(a.to(base.dtype), b.to(base.dtype), coefficient, gain, stack.kind)
    return terms


def plain_weight(module: nn.Module) -> Tensor | None:
    """A module's float weight as ``[d_out, d_in]`` (Conv1D stores it transposed), None where it is quantised."""
    weight = getattr(module, "weight", None)
    if weight is None or weight.ndim != 2 or not weight.is_floating_point():
        return None
    return weight.T if type(module).__name__ == "Conv1D" else weight


def _gain(base: Base, path: str, stack: Stack, a: Tensor, b: Tensor) -> Tensor:
    import torch

    from evolora.adapters.geometry import weight_norms

    weight = plain_weight(base.model.get_submodule(path))
    if weight is None or stack.kind != "linear" or stack.coefficient is not None:
        raise ModelError(
            "DoRA needs the norms of a plain float weight", where=path, mend="load the base unquantised"
        )
    assert stack.magnitude is not None
    magnitude = stack.magnitude.to(a.device)
    gain = magnitude / weight_norms(weight.float(), a, b)
    return torch.where(magnitude.isnan(), torch.ones_like(gain), gain)


@contextmanager
def attached(
    base: Base, terms: Mapping[str, Term], shared: Mapping[str, Tensor], *, differentiable: bool = False
) -> Iterator[None]:
    """While open, every forward of the base computes the block's members on their rows.

    Args:
        base: its modules get hooks, its weights are not touched.
        terms: from ``prepare``.
        shared: dense terms common to all rows, from ``shared_terms``.
        differentiable: keep the graph to the factors (no in-place products).
    """
    handles = []
    patched: list[nn.Module] = []
    try:
        for path, (matrix, fused) in shared.items():
            module = base.model.get_submodule(path)
            if fused:
                module.forward = _effective_forward(module, matrix)  # type: ignore[method-assign]
                patched.append(module)
            else:
                handles.append(module.register_forward_hook(_dense_hook(matrix, type(module).__name__)))
        for members in _by_input(base, terms):
            for hook, path in _group_hooks(base, members, differentiable):
                handles.append(base.model.get_submodule(path).register_forward_hook(hook))
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module in patched:
            del module.forward


def shared_terms(base: Base, shared: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, bool]]:
    """Prepares dense deltas ``[d_out, d_in]`` common to all members.

    A float32 ``nn.Linear`` runs on ``W + D`` (a copy; costs nothing per token). Elsewhere ``x D^T`` is a product of its
    own, since a sum in half precision would swallow a small D.
    """
    import torch
    from torch import nn

    ready = {}
    for path, delta in shared.items():
        module = base.model.get_submodule(path)
        delta = delta.to(base.device)
        if type(module) is nn.Linear and module.weight.dtype == torch.float32:
            ready[path] = (module.weight + delta, True)
        else:
            ready[path] = (delta.to(base.dtype), False)
    return ready


def _effective_forward(module: nn.Module, weight: Tensor) -> Any:
    from torch.nn.functional import linear

    return lambda x: linear(x, weight, module.bias)


def _dense_hook(delta: Tensor, kind: str) -> Any:
    from torch.nn.functional import embedding

    def hook(_module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if kind == "Embedding":
            return output + embedding(args[0], delta.T)
        flat = output.view(-1, output.shape[-1])
        flat.addmm_(args[0].reshape(-1, args[0].shape[-1]), delta.T)
        return output

    return hook


def _by_input(base: Base, terms: Mapping[str, Term]) -> list[list[tuple[str, Term]]]:
    """Sorts linear modules by the input they share, so that one A-product serves them all."""
    found: dict[tuple[Any, ...], list[tuple[str, Term]]] = {}
    for path, term in terms.items():
        alone = term.kind == "embedding" or path not in base.structure.groups
        shared_input = path if alone else base.structure.groups[path]
        key = (shared_input, len(term.a), None if term.coefficient is None else term.coefficient.numel())
        found.setdefault(key, []).append((path, term))
    return list(found.values())


def _group_hooks(
    base: Base, members: Sequence[tuple[str, Term]], differentiable: bool
) -> Iterator[tuple[Any, str]]:
    import torch

    if members[0][1].kind == "embedding":
        for path, term in members:
            yield _embedding_hook(term), path
        return
    down = members[0][1].a if len(members) == 1 else torch.cat([term.a for _, term in members], 1)
    projection = _Projection(down.transpose(1, 2), members[0][1].coefficient)
    start = 0
    for path, term in members:
        bias = getattr(base.model.get_submodule(path), "bias", None)
        rank = term.a.shape[1]
        yield (
            _linear_hook(projection, slice(start, start + rank), len(members), term, bias, differentiable),
            path,
        )
        start += rank


class _Projection:
    """``u = coefficient * x A^T`` of the modules that share an input; computed at the first of them."""

    def __init__(self, down: Tensor, coefficient: Tensor | None) -> None:
        self.down, self.coefficient = down, coefficient
        self._input: Tensor | None = None
        self._value: Tensor | None = None
        self._left = 0

    def __call__(self, x: Tensor, users: int) -> Tensor:
        import torch

        if self._input is not x:
            u = torch.bmm(x.reshape(len(self.down), -1, x.shape[-1]), self.down)
            if self.coefficient is not None:
                u.view(len(self.coefficient), -1, u.shape[-1]).mul_(self.coefficient[:, None, None])
            self._input, self._value, self._left = x, u, users
        assert self._value is not None
        value = self._value
        self._left -= 1
        if self._left <= 0:  # let the activations go
            self._input = self._value = None
        return value


def _linear_hook(
    projection: _Projection, part: slice, users: int, term: Term, bias: Tensor | None, differentiable: bool
) -> Any:
    up = term.b.transpose(1, 2)
    groups, d_out = term.b.shape[0], term.b.shape[1]
    gain = term.gain

    def hook(_module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        u = projection(args[0], users)[..., part]
        if differentiable:
            return output + (u @ up).view(output.shape)
        if gain is not None:
            per_member = output.view(len(gain), -1, d_out)
            if bias is not None:
                per_member.sub_(bias)
            per_member.mul_(gain[:, None, :])
            if bias is not None:
                per_member.add_(bias)
        output.view(groups, -1, d_out).baddbmm_(u, up)
        return output

    return hook


def _embedding_hook(term: Term) -> Any:
    import torch

    table = term.a.transpose(1, 2)
    up = term.b.transpose(1, 2)
    groups = len(table)

    def hook(_module: nn.Module, args: tuple[torch.Tensor, ...], output: Tensor) -> Tensor:
        ids = args[0].reshape(groups, -1)
        u = torch.stack([table[group][ids[group]] for group in range(groups)])
        if term.coefficient is not None:
            u.view(len(term.coefficient), -1, u.shape[-1]).mul_(term.coefficient[:, None, None])
        return output + torch.bmm(u, up).view(output.shape)

    return hook
