"""Population layers: every member's low-rank term added to the output of the frozen module.

The base module runs once over all rows, unchanged (so a quantised one works as it is). Rows stand member by
member. The members' terms are two grouped batched products, the second added in place:

    u = x A^T                 [groups, rows of a group, sum of ranks]; one product for modules that share
    their input y += u B^T                in place (baddbmm)

Dense deltas of single members are the case A = 1: ``u = x``.

DoRA rescales each output channel: ``y = gain * (y - bias) + bias + (gain B) u``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from evolora.engine.terms import Shared, Term

if TYPE_CHECKING:
    from torch import Tensor, nn

    from evolora.engine.base import Base


@contextmanager
def attached(
    base: Base, terms: Mapping[str, Term], shared: Mapping[str, Shared], *, differentiable: bool = False
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
        for path, term in shared.items():
            module = base.model.get_submodule(path)
            if term.fused:
                module.forward = _effective_forward(module, term.matrix)
                patched.append(module)
            else:
                handles.append(module.register_forward_hook(_dense_hook(term)))
        for members in _by_input(base, terms):
            for path, hook in _group_hooks(base, members, differentiable):
                handles.append(base.model.get_submodule(path).register_forward_hook(hook))
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module in patched:
            del module.forward


def _effective_forward(module: Any, weight: Tensor) -> Any:
    from torch.nn.functional import linear

    return lambda x: linear(x, weight, module.bias)


def _dense_hook(term: Shared) -> Any:
    from torch.nn.functional import embedding, linear

    product = embedding if term.kind == "embedding" else linear
    matrix = term.matrix.T if term.kind == "embedding" else term.matrix

    def hook(_module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        x = args[0]
        if term.kind == "embedding" or x.dtype != matrix.dtype or not output.is_contiguous():
            x = x if term.kind == "embedding" else x.to(matrix.dtype)
            return output + product(x, matrix).to(output.dtype)
        output.view(-1, output.shape[-1]).addmm_(x.reshape(-1, x.shape[-1]), matrix.T)
        return output

    return hook


def _by_input(base: Base, terms: Mapping[str, Term]) -> list[list[tuple[str, Term]]]:
    """Sorts linear modules by the input they share, so that one A-product serves them all."""
    found: dict[tuple[Any, ...], list[tuple[str, Term]]] = {}
    for path, term in terms.items():
        shared_input = path if term.kind == "embedding" or term.a is None else base.structure.groups[path]
        key = (shared_input, len(term.b), id(term.coefficient))
        found.setdefault(key, []).append((path, term))
    return list(found.values())


def _group_hooks(
    base: Base, members: Sequence[tuple[str, Term]], differentiable: bool
) -> Iterator[tuple[str, Any]]:
    import torch

    if members[0][1].kind == "embedding":
        for path, term in members:
            yield path, _embedding_hook(term)
        return
    factors = [term.a for _, term in members if term.a is not None]
    down = factors[0] if len(factors) == 1 else torch.cat(factors, 1) if factors else None
    first = members[0][1]
    projection = _Projection(
        None if down is None else down.transpose(1, 2), len(first.b), first.coefficient, len(members)
    )
    start = 0
    for path, term in members:
        bias = getattr(base.model.get_submodule(path), "bias", None)
        part = slice(start, start + term.b.shape[2])
        yield path, _linear_hook(projection, part, term, bias, differentiable)
        start = part.stop


class _Projection:
    """``u = coefficient * x A^T`` of the modules that share an input; computed at the first of them.

    Args:
        down: ``A^T [g, d_in, r]``, or None for the identity.
        groups: g.
        coefficient: ``[n]`` or None.
        users: how many modules will ask.
    """

    def __init__(self, down: Tensor | None, groups: int, coefficient: Tensor | None, users: int) -> None:
        self.down, self.groups, self.coefficient, self.users = down, groups, coefficient, users
        self._input: Tensor | None = None
        self._value: Tensor | None = None
        self._left = 0

    def __call__(self, x: Tensor) -> Tensor:
        import torch

        if self._input is not x:
            u = x.reshape(self.groups, -1, x.shape[-1])
            if self.down is not None:
                u = torch.bmm(u.to(self.down.dtype), self.down)
            if self.coefficient is not None:
                factor = self.coefficient[:, None, None]
                by_member = u.reshape(len(factor), -1, u.shape[-1])
                # x itself is not ours to scale
                u = by_member.mul_(factor) if self.down is not None else by_member * factor
                u = u.view(self.groups, -1, u.shape[-1])
            self._input, self._value, self._left = x, u, self.users
        assert self._value is not None
        value = self._value
        self._left -= 1
        if self._left <= 0:  # let the activations go
            self._input = self._value = None
        return value


def _linear_hook(
    projection: _Projection, part: slice, term: Term, bias: Tensor | None, differentiable: bool
) -> Any:
    import torch

    up = term.b.transpose(1, 2)
    groups, d_out = term.b.shape[0], term.b.shape[1]
    gain = term.gain

    def hook(_module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        u = projection(args[0])[..., part].to(up.dtype)
        if differentiable:
            return output + torch.bmm(u, up).view(output.shape).to(output.dtype)
        output = output.contiguous()
        if gain is not None:
            per_member = output.view(len(gain), -1, d_out)
            if bias is not None:
                per_member.sub_(bias)
            per_member.mul_(gain[:, None, :])
            if bias is not None:
                per_member.add_(bias)
        if output.dtype != up.dtype:  # a module kept in another precision than the rest
            return output + torch.bmm(u, up).view(output.shape).to(output.dtype)
        _add_product(output.view(groups, -1, d_out), u, up)
        return output

    return hook


def _add_product(y: Tensor, u: Tensor, up: Tensor) -> None:
    """``y [g, rows, d_out] += u [g, rows, r] @ up [g, r, d_out]`` in place, by the shape's fastest kernel."""
    rank, rows, half = up.shape[1], y.shape[1], y.dtype.itemsize == 2
    if rank == 1 and (rows <= 4 or not half):
        y.addcmul_(u, up)  # products with an inner dimension of 1 are 4 to 10 times as slow on a CPU
    elif rows == 1 and half and y.device.type == "cpu":
        # a matrix times a column, not a row times a matrix
        y.transpose(1, 2).baddbmm_(up.transpose(1, 2), u.transpose(1, 2))
    else:
        y.baddbmm_(u, up)


def _embedding_hook(term: Term) -> Any:
    import torch

    up = term.b.transpose(1, 2)
    table = up if term.a is None else term.a.transpose(1, 2)
    groups = len(table)

    def hook(_module: nn.Module, args: tuple[torch.Tensor, ...], output: Tensor) -> Tensor:
        ids = args[0].reshape(groups, -1)
        u = torch.stack([table[group][ids[group]] for group in range(groups)])
        if term.coefficient is not None:
            u.view(len(term.coefficient), -1, u.shape[-1]).mul_(term.coefficient[:, None, None])
        added = u if term.a is None else torch.bmm(u, up)
        return output + added.view(output.shape).to(output.dtype)

    return hook
