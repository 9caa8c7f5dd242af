"""Finding a model's structure by watching it work; nothing here depends on a model's name.

Two forward passes over a few short rows show which modules see every token in order (those can carry an
adapter), which of them share an input, which arguments of the layers have one row a sequence, that no
position sees a later one, and whether padding on the left is harmless. What does not hold is refused, or not
used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from evolora.adapters import ModuleSpec
from evolora.engine.structure import Path, Structure, accepts, agree, embedding_scale, flatten, spec_of
from evolora.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor, nn

_TOKENS, _PADDING = 5, 2


def probe(model: nn.Module) -> Structure:
    """Reads the structure of a causal LM, with two forwards of 15 and 20 tokens.

    Raises:
        ModelError: it is not a decoder-only language model whose outputs the engine can compute exactly.
    """
    import torch

    name = type(model).__name__
    layers = _layer_paths(model)
    head = _head_path(model)
    specs = {path: spec for path, module in model.named_modules() if (spec := spec_of(module)) is not None}
    if head not in specs:
        raise ModelError(f"the output embedding of {name} is no linear module", where=head)
    try:
        with torch.inference_mode(False), torch.no_grad():  # tensors of inference mode have no version
            plain_ids, padded_ids, mask = _rows(model)
            plain = _watch(model, layers, specs, plain_ids, {})
            padded = _watch(model, layers, specs, padded_ids, _masked(model, mask))
    except Exception as error:
        raise ModelError(f"{name} fails on a plain forward pass: {error}") from error

    if head not in plain.inputs:
        raise ModelError(f"{name} computes logits without calling its output embedding", where=head)
    last = plain.inputs[head][0]
    if not last.isfinite().all():
        raise ModelError(
            f"{name} computes values that are not finite", mend="check the weights and the dtype"
        )
    if tuple(last.shape[:2]) != tuple(plain_ids.shape):
        raise ModelError(f"{name} does not call its output embedding on [rows, tokens, width]", where=head)
    if not agree(last[0, :-1], last[2, :-1]):
        raise ModelError(
            f"a later token changes what {name} says about earlier ones",
            mend="it is no causal language model (an encoder, perhaps)",
        )
    usable = {
        path: specs[path]
        for path in plain.inputs
        if (_sees_rows(plain.inputs[path], specs[path], len(plain_ids)) or path == head)
        and (_sees_rows(padded.inputs.get(path, []), specs[path], len(padded_ids)) or path == head)
        and (specs[path].kind == "linear" or path in plain.plain_embeddings)
    }
    shift = padded.inputs[head][0][0, _PADDING:]
    return Structure(
        layers,
        usable,
        plain.groups(),
        {path: _layer_of(path, layers, plain.called_in[path]) for path in usable},
        head,
        _batched(plain.arguments, padded.arguments),
        plain.order == padded.order == list(range(len(layers))),
        agree(shift, last[0, : len(shift)]),
    )


@dataclass
class _Seen:
    """What one forward showed."""

    inputs: dict[str, list[Tensor]] = field(default_factory=dict)
    called_in: dict[str, int] = field(default_factory=dict)
    arguments: dict[Path, float] = field(default_factory=dict)
    plain_embeddings: set[str] = field(default_factory=set)
    order: list[int] = field(default_factory=list)
    _identities: dict[str, tuple[int, int]] = field(default_factory=dict)

    def note(self, path: str, value: Tensor, layer: int) -> None:
        """A module receives an input while a layer runs."""
        self.inputs.setdefault(path, []).append(value)  # kept alive, so that an address stands for one tensor
        self.called_in.setdefault(path, layer)
        # a tensor that was changed in place between two calls is not one input
        self._identities.setdefault(path, (id(value), value._version))

    def groups(self) -> dict[str, int]:
        """For each module a number that those with the same input share."""
        numbers: dict[object, int] = {}
        keys = {p: (self._identities[p] if len(seen) == 1 else p) for p, seen in self.inputs.items()}
        return {path: numbers.setdefault(key, len(numbers)) for path, key in keys.items()}


def _watch(
    model: nn.Module,
    layers: Sequence[str],
    specs: Mapping[str, ModuleSpec],
    ids: Tensor,
    arguments: Mapping[str, Tensor],
) -> _Seen:
    import torch

    seen = _Seen()
    current = -1

    def before_module(path: str) -> Any:
        def hook(_module: nn.Module, args: tuple[Any, ...]) -> None:
            if args and isinstance(args[0], torch.Tensor):
                seen.note(path, args[0], current)

        return hook

    def after_embedding(path: str) -> Any:
        def hook(module: Any, args: tuple[Any, ...], output: Tensor) -> None:
            if args[0].dtype == torch.long:
                rows = module.weight[args[0]] * embedding_scale(module)
                if rows.shape == output.shape and torch.allclose(rows, output, rtol=1e-2):
                    seen.plain_embeddings.add(path)

        return hook

    def before_layer(index: int) -> Any:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nonlocal current
            current = index
            seen.order.append(index)
            for path, tensor in flatten({**dict(enumerate(args)), **kwargs}):
                if tensor.ndim >= 2 and tensor.shape[0] > 1:  # one row serves any batch
                    seen.arguments[path] = tensor.shape[0] / len(ids)

        return hook

    def after_stack(_module: nn.Module, _args: Any, _output: Any) -> None:
        nonlocal current
        current = len(layers)

    handles = []
    try:
        for path, spec in specs.items():
            module = model.get_submodule(path)
            handles.append(module.register_forward_pre_hook(before_module(path)))
            if spec.kind == "embedding":
                handles.append(module.register_forward_hook(after_embedding(path)))
        for index, path in enumerate(layers):
            handles.append(
                model.get_submodule(path).register_forward_pre_hook(before_layer(index), with_kwargs=True)
            )
        handles.append(model.get_submodule(layers[-1]).register_forward_hook(after_stack))
        cache = {"use_cache": False} if accepts(model, "use_cache") else {}
        model(input_ids=ids, **arguments, **cache)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _layer_paths(model: nn.Module) -> tuple[str, ...]:
    from torch import nn

    stacks = {p: m for p, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m)}
    if not stacks:
        raise ModelError(
            f"{type(model).__name__} has no stack of layers",
            mend="evolora adapts decoder-only language models",
        )
    size = {p: sum(weight.numel() for weight in list(m.parameters())) for p, m in stacks.items()}
    path = max(stacks, key=lambda p: size[p])
    return tuple(f"{path}.{index}" for index in range(len(stacks[path])))


def _head_path(model: Any) -> str:
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    paths = [path for path, module in model.named_modules() if module is head]
    if head is None or not paths:
        raise ModelError(
            f"{type(model).__name__} has no output embedding",
            mend="load a model with a language-modelling head",
        )
    return paths[0]


def _rows(model: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Rows without padding, rows of which the first is padded on the left, and the mask of the latter.

    Of the plain ones the third is the first but for its last token; the second is another.
    """
    import torch

    table = model.get_input_embeddings()
    device = next(model.parameters()).device
    tokens = (
        torch.linspace(table.num_embeddings // 8, table.num_embeddings - 1, 2 * _TOKENS + 1).long().to(device)
    )
    one, other = tokens[:_TOKENS], tokens[_TOKENS:-1]
    plain = torch.stack([one, other, torch.cat([one[:-1], tokens[-1:]])])
    late = torch.cat([tokens[:1].expand(_PADDING), one[:-_PADDING]])
    changed = torch.cat([late[:-1], tokens[-1:]])
    padded = torch.stack([late, other, changed, other.flip(0)])
    mask = torch.ones_like(padded)
    mask[[0, 2], :_PADDING] = 0
    return plain, padded, mask


def _masked(model: nn.Module, mask: Tensor) -> dict[str, Tensor]:
    arguments = {"attention_mask": mask}
    if accepts(model, "position_ids"):
        arguments["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    return arguments


def _sees_rows(inputs: Sequence[Tensor], spec: ModuleSpec, rows: int) -> bool:
    """Whether each call got every token, row by row: the rows that differ in the end only start alike."""
    if not inputs:
        return False
    for value in inputs:
        flat = value.reshape(-1, *value.shape[-1:]) if spec.kind == "linear" else value.reshape(-1)
        if len(flat) != rows * _TOKENS or (spec.kind == "linear" and value.shape[-1] != spec.d_in):
            return False
        first, second, third = flat.view(rows, _TOKENS, *flat.shape[1:])[:3, _PADDING:-1]
        if not agree(first, third) or bool((first == second).all()):
            return False
    return True


def _batched(plain: Mapping[Path, float], padded: Mapping[Path, float]) -> dict[Path, int]:
    """Arguments that are the same whole multiple of the batch in every pass that has them."""
    found = {}
    for path in {**plain, **padded}:
        counts = {seen[path] for seen in (plain, padded) if path in seen}
        if len(counts) == 1 and (count := counts.pop()).is_integer():
            found[path] = int(count)
    return found


def _layer_of(path: str, layers: Sequence[str], called_in: int) -> int:
    for index, layer in enumerate(layers):
        if path.startswith(layer + "."):
            return index
    return called_in
