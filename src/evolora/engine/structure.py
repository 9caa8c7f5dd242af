"""What a causal LM looks like from outside: its layers, adaptable modules, and who shares an input."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evolora.adapters import ModuleSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

Path = tuple[str | int, ...]
Targets = str | Sequence[str]
Layers = str | Sequence[int] | None


@dataclass(frozen=True)
class Structure:
    """The parts of a causal LM that the engine works with; ``evolora.engine.probe`` finds them.

    Attributes:
        layers: paths of the decoder layers, from the input upwards.
        specs: every module that can carry an adapter, in the order in which a forward calls them.
        groups: for each module the number of its input; modules with one number receive the same tensor.
        layer_of: the index of the layer that a module belongs to (-1 below, ``len(layers)`` above them).
        head: path of the output embedding.
        batched: paths of those layer arguments whose first dimension is the batch, or (alibi: batch x heads)
            a multiple of it, which is the value.
        in_order: a forward calls every layer once, from the first to the last.
        pads: padding on the left, masked, changes nothing.
    """

    layers: tuple[str, ...]
    specs: dict[str, ModuleSpec]
    groups: dict[str, int]
    layer_of: dict[str, int]
    head: str
    batched: dict[Path, int]
    in_order: bool
    pads: bool


def spec_of(module: nn.Module) -> ModuleSpec | None:
    """The shape of an adaptable module (Linear and its quantised kin, Conv1D, Embedding), else None."""
    from torch import nn

    part: Any = module
    if isinstance(module, nn.Embedding):
        return ModuleSpec(module.embedding_dim, module.num_embeddings, "embedding")
    if hasattr(module, "in_features") and hasattr(module, "out_features"):
        return ModuleSpec(int(part.out_features), int(part.in_features))
    if is_conv1d(module):
        return ModuleSpec(int(part.nf), int(part.weight.shape[0]))
    return None


def is_conv1d(module: nn.Module) -> bool:
    """Whether this is GPT-2's linear module, which stores its weight as ``[d_in, d_out]``."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def plain_weight(module: nn.Module) -> Tensor | None:
    """A module's float weight as ``[d_out, d_in]`` (an embedding's as it is), None where it is quantised."""
    import torch

    weight = getattr(module, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        return None
    return weight.T if is_conv1d(module) else weight


def embedding_scale(module: nn.Module) -> float:
    """What an embedding multiplies its rows by (Gemma's scaled word embedding), 1 for a plain one."""
    for name in ("scalar_embed_scale", "embed_scale"):
        scale = getattr(module, name, None)
        if scale is not None:
            return float(scale)
    return 1.0


def flatten(value: Any, path: Path = ()) -> list[tuple[Path, Tensor]]:
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


def accepts(model: nn.Module, argument: str) -> bool:
    """Whether the model's forward names this argument (decorators are seen through)."""
    return argument in inspect.signature(type(model).forward).parameters


def agree(one: Tensor, other: Tensor) -> bool:
    """Equal up to the rounding of their precision, which a batch of another shape may bring."""
    import torch

    tolerance = 1e-4 if one.dtype in (torch.float32, torch.float64, torch.long) else 0.03
    one, other = one.double(), other.double()
    return bool((one - other).abs().max() <= tolerance * one.abs().max())
