"""Analytic FLOPs of a forward pass; a multiply-add counts two. Checked against torch's counter in the tests.

Counted are matrix products: modules, attention scores and values over the full T x T square (as torch counts
them), the output head where it is computed, and the adapters' own products. Norms, activations and softmax
are not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evolora.adapters import DENSE, ModuleSpec, Stack

if TYPE_CHECKING:
    from evolora.engine.base import Base


@dataclass(frozen=True)
class FlopModel:
    """Per-token costs of a base.

    Attributes:
        layer: FLOPs per token of the modules in one layer, one number a layer.
        attention: FLOPs per token and key of one layer's attention.
        head: FLOPs per row of the output head.
    """

    layer: tuple[float, ...]
    attention: float
    head: float

    @classmethod
    def of(cls, base: Base) -> FlopModel:
        """Reads the costs from the base's structure and config."""
        structure = base.structure
        layer = [0.0] * len(structure.layers)
        for path, spec in structure.specs.items():
            index = structure.layer_of[path]
            if spec.kind == "linear" and 0 <= index < len(layer):
                layer[index] += 2.0 * spec.d_in * spec.d_out
        config = base.model.config.get_text_config()
        for index, path in enumerate(structure.layers):
            layer[index] += _expert_flops(base, path, config)
        heads = getattr(config, "num_attention_heads", None) or 0
        width = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 0) // max(1, heads)
        spec = structure.specs[structure.head]
        return cls(tuple(layer), 4.0 * heads * width, 2.0 * spec.d_in * spec.d_out)

    def forward(
        self,
        *,
        rows: int,
        tokens: int,
        keys: int,
        head_rows: int,
        shared_rows: int | None = None,
        start: int = 0,
    ) -> float:
        """FLOPs of ``rows`` sequences of ``tokens`` new tokens that attend to ``keys`` keys.

        Layers below ``start`` run on ``shared_rows`` sequences only (the frozen prefix).
        """
        per_layer = [cost * tokens + self.attention * tokens * keys for cost in self.layer]
        below = sum(per_layer[:start]) * (rows if shared_rows is None else shared_rows)
        return below + sum(per_layer[start:]) * rows + self.head * head_rows

    def backward(
        self,
        reached: Mapping[str, ModuleSpec],
        attention: Collection[int],
        *,
        rows: int,
        tokens: int,
        head: str,
        head_rows: int,
    ) -> float:
        """FLOPs of the gradients that flow through a frozen model, its own weights getting none.

        Args:
            reached: the modules whose input gets a gradient.
            attention: the layers whose attention is gone through; it costs twice its forward.
            rows: sequences.
            tokens: of each.
            head: the output embedding's path.
            head_rows: rows of the output head.
        """
        products = sum(
            2.0 * spec.d_in * spec.d_out * (head_rows if path == head else rows * tokens)
            for path, spec in reached.items()
        )
        return products + len(attention) * 2 * self.attention * tokens * tokens * rows


def _expert_flops(base: Base, layer: str, config: Any) -> float:
    """FLOPs per token of experts kept as one parameter ``[experts, ., .]`` and of their router."""
    counts = (
        getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")
    )
    experts = next((count for count in counts if count), None)
    active = getattr(config, "num_experts_per_tok", None)
    if not experts or not active:
        return 0.0
    flops = 0.0
    for name, weight in base.model.get_submodule(layer).named_parameters():
        adaptable = f"{layer}.{name.rpartition('.')[0]}" in base.structure.specs
        if len(weight) == experts and not adaptable:
            flops += 2.0 * weight.numel() * {2: 1.0, 3: active / experts}.get(weight.ndim, 0.0)
    return flops


def adapter_flops(specs: Mapping[str, ModuleSpec], ranks: Mapping[str, int]) -> float:
    """FLOPs per token of one member's own products (a look-up in an embedding's A is free)."""
    total = 0.0
    for name, spec in specs.items():
        inputs = spec.d_in if spec.kind == "linear" else 0
        dense = ranks[name] == DENSE
        total += 2.0 * spec.d_out * inputs if dense else 2.0 * ranks[name] * (spec.d_out + inputs)
    return total


def norm_flops(stacks: Mapping[str, Stack]) -> float:
    """FLOPs of the norms ``||W + B A||`` that DoRA members are divided by (``geometry.weight_norms``)."""
    total = 0.0
    for stack in stacks.values():
        if stack.magnitude is None or stack.a is None:
            continue
        own, rank, d_in = stack.a.shape
        own = 1 if stack.a.stride(0) == 0 else own  # an A that all members share meets W once
        members, d_out = stack.b.shape[:2]
        total += 2.0 * rank * (own * d_in * (d_out + rank) + members * d_out * rank)
    return total
