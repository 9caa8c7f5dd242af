"""What a causal LM looks like from outside: its layers, adaptable modules, and who shares an input.

Nothing here depends on a model's name. Shapes are read from the modules, the rest from one tiny forward pass.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evolora.adapters import ModuleSpec
from evolora.errors import ConfigError, ModelError

if TYPE_CHECKING:
    import torch
    from torch import nn

Targets = str | Sequence[str]
Layers = str | Sequence[int] | None

_PROBE_ROWS, _PROBE_TOKENS = 3, 5


@dataclass(frozen=True)
class Structure:
    """The parts of a causal LM that the engine works with.

    Attributes:
        layers: paths of the decoder layers, from the input upwards.
        specs: every module that can carry an adapter, in the order in which a forward calls them.
        groups: for each module the number of its input; modules with one number receive the same tensor.
        layer_of: the index of the layer that a module belongs to (-1 below, ``len(layers)`` above them).
        head: path of the output embedding.
        batched: paths of those layer arguments whose first dimension is the batch.
    """

    layers: tuple[str, ...]
    specs: dict[str, ModuleSpec]
    groups: dict[str, int]
    layer_of: dict[str, int]
    head: str
    batched: frozenset[tuple[str | int, ...]]


def spec_of(module: nn.Module) -> ModuleSpec | None:
    """The shape of an adaptable module (Linear and its quantised kin, Conv1D, Embedding), else None."""
    from torch import nn

    if isinstance(module, nn.Embedding):
        return ModuleSpec(module.embedding_dim, module.num_embeddings, "embedding")
    if isinstance(module, nn.Linear) or (hasattr(module, "in_features") and hasattr(module, "out_features")):
        return ModuleSpec(int(module.out_features), int(module.in_features))
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        return ModuleSpec(int(module.nf), int(module.weight.shape[0]))
    return None


def flatten(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], torch.Tensor]]:
    """All tensors in nested tuples, lists and dicts, with the path to each."""
    import torch

    if isinstance(value, torch.Tensor):
        return [(path, value)]
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, tuple | list):
        items = enumerate(value)
    return [leaf for key, child in items for leaf in flatten(child, (*path, key))]


def probe(model: nn.Module) -> Structure:
    """Reads the structure of a causal LM, with one forward of 15 tokens.

    Raises:
        ModelError: the model has no stack of layers or no output embedding that the engine can use.
    """
    import torch
    from torch import nn

    name = type(model).__name__
    paths = {id(module): path for path, module in model.named_modules()}
    stacks = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len({type(c) for c in m}) == 1]
    if not stacks:
        raise ModelError(
            f"{name} has no stack of equal layers", mend="evolora adapts decoder-only language models"
        )
    stack = max(stacks, key=lambda m: sum(p.numel() for p in m.parameters()))
    layers = tuple(paths[id(layer)] for layer in stack)
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is None:
        raise ModelError(
            f"{name} has no output embedding", mend="load a model with a language-modelling head"
        )

    calls: dict[str, tuple[int, tuple[int, ...]]] = {}
    batched: set[tuple[str | int, ...]] = set()
    kept: list[Any] = []  # keeps inputs alive, so that an address stands for one tensor
    handles = []

    def see_input(path: str) -> Any:
        def hook(_module: nn.Module, args: tuple[Any, ...]) -> None:
            if args and path not in calls:
                kept.append(args[0])
                calls[path] = (id(args[0]), tuple(args[0].shape))

        return hook

    def see_layer(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for path, tensor in flatten({**dict(enumerate(args)), **kwargs}):
            if tensor.ndim >= 2 and tensor.shape[0] == _PROBE_ROWS:
                batched.add(path)

    specs: dict[str, ModuleSpec] = {}
    for module_path, module in model.named_modules():
        spec = spec_of(module)
        if spec is not None:
            specs[module_path] = spec
            handles.append(module.register_forward_pre_hook(see_input(module_path)))
    for layer in stack:
        handles.append(layer.register_forward_pre_hook(see_layer, with_kwargs=True))
    try:
        device = next(model.parameters()).device
        ids = torch.ones(_PROBE_ROWS, _PROBE_TOKENS, dtype=torch.long, device=device)
        arguments: dict[str, Any] = {"attention_mask": ids.clone(), "use_cache": False}
        arguments["attention_mask"][0, :2] = 0
        positions = accepts(model, "position_ids")
        if positions:
            arguments["position_ids"] = torch.arange(_PROBE_TOKENS, device=device).repeat(_PROBE_ROWS, 1)
        with torch.no_grad():
            model(input_ids=ids, **arguments)
    except Exception as error:
        raise ModelError(f"{name} fails on a plain forward pass: {error}") from error
    finally:
        for handle in handles:
            handle.remove()

    numbers: dict[int, int] = {}
    groups = {path: numbers.setdefault(address, len(numbers)) for path, (address, _) in calls.items()}
    tokens = _PROBE_ROWS * _PROBE_TOKENS
    usable = {
        path: specs[path]
        for path, (_, shape) in calls.items()
        if _rows(shape, specs[path]) == tokens or path == paths.get(id(head))
    }
    layer_of = {path: _layer_of(path, layers, below=specs[path].kind == "embedding") for path in usable}
    return Structure(layers, usable, groups, layer_of, paths[id(head)], frozenset(batched))


def _rows(shape: tuple[int, ...], spec: ModuleSpec) -> int:
    count = 1
    for size in shape if spec.kind == "embedding" else shape[:-1]:
        count *= size
    return count


def _layer_of(path: str, layers: Sequence[str], *, below: bool) -> int:
    for index, layer in enumerate(layers):
        if path.startswith(layer + "."):
            return index
    return -1 if below else len(layers)


def accepts(model: nn.Module, argument: str) -> bool:
    """Whether the model's forward names this argument (decorators are seen through)."""
    import inspect

    return argument in inspect.signature(type(model).forward).parameters


def select(structure: Structure, targets: Targets, layers: Layers) -> dict[str, ModuleSpec]:
    """The modules that ``targets`` and ``layers`` name.

    Args:
        structure: of the base.
        targets: ``all-linear`` (every linear module inside the layers), ``attention`` or ``mlp`` (the same, split by
            whether the path speaks of attention), a list of last path parts (``["q_proj", "v_proj"]``), or a
            regular expression for the whole path.
        layers: None (all), ``top:8``, ``bottom:4``, ``0-5``, or a list of indices; negative ones count from the top.

    Raises:
        ConfigError: nothing matches, or a layer does not exist.
    """
    wanted = _layers(layers, len(structure.layers))
    inside = {p: s for p, s in structure.specs.items() if 0 <= structure.layer_of[p] < len(structure.layers)}
    linear = {p: s for p, s in inside.items() if s.kind == "linear"}
    if targets == "all-linear":
        found = linear
    elif targets in ("attention", "mlp"):
        found = {
            p: s
            for p, s in linear.items()
            if bool(re.search("attn|attention", p)) == (targets == "attention")
        }
    elif isinstance(targets, str):
        try:
            found = {p: s for p, s in structure.specs.items() if re.fullmatch(targets, p)}
        except re.error as error:
            raise ConfigError(f"'{targets}' is no regular expression: {error}", where="targets") from None
    else:
        found = {
            p: s for p, s in structure.specs.items() if any(p == t or p.endswith("." + t) for t in targets)
        }
        missing = [t for t in targets if not any(p == t or p.endswith("." + t) for p in found)]
        if missing:
            raise ConfigError(
                f"no module is called {', '.join(missing)}", where="targets", mend=_known(structure)
            )
    if layers is not None:
        found = {p: s for p, s in found.items() if structure.layer_of[p] in wanted}
    if not found:
        raise ConfigError(f"'{targets}' in layers {layers or 'all'} names no module", mend=_known(structure))
    return found


def _known(structure: Structure) -> str:
    return "this model has " + ", ".join(sorted({p.rsplit(".", 1)[-1] for p in structure.specs}))


def _layers(layers: Layers, depth: int) -> set[int]:
    if layers is None:
        return set(range(depth))
    if isinstance(layers, str):
        edge = re.fullmatch(r"(top|bottom):(\d+)", layers)
        span = re.fullmatch(r"(\d+)-(\d+)", layers)
        if edge and 0 < int(edge[2]) <= depth:
            count = int(edge[2])
            return set(range(depth - count, depth) if edge[1] == "top" else range(count))
        if span and int(span[1]) <= int(span[2]) < depth:
            return set(range(int(span[1]), int(span[2]) + 1))
        if not re.fullmatch(r"-?\d+(,-?\d+)*", layers):
            raise ConfigError(
                f"'{layers}' does not select layers of this model",
                where="layers",
                mend=f"it has {depth}: write top:8, bottom:4, 0-5 or 3,4,5",
            )
        layers = [int(index) for index in layers.split(",")]
    bad = [index for index in layers if not -depth <= index < depth]
    if bad:
        raise ConfigError(
            f"there is no layer {bad[0]}", where="layers", mend=f"the model has layers 0 to {depth - 1}"
        )
    return {index % depth for index in layers}
