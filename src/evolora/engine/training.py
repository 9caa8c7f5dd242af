"""The gradient baselines' loss: one adapter, a graph to its factors, the backward pass counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from evolora.engine.batches import join
from evolora.engine.bound import Bound
from evolora.engine.flops import adapter_flops
from evolora.engine.layers import attached
from evolora.engine.selection import of_attention
from evolora.engine.terms import Term

if TYPE_CHECKING:
    from torch import Tensor, nn

    from evolora.engine.base import Base
    from evolora.engine.engine import Engine


def training_loss(
    engine: Engine,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    scale: float,
    pairs: Sequence[tuple[list[int], list[int]]],
) -> Tensor:
    """Mean negative log-likelihood per answer token; see ``Engine.training_loss``."""
    from torch.nn.functional import cross_entropy

    base = engine.base
    specs = {name: base.structure.specs[name] for name in a}
    terms = {
        name: Term(
            a[name].to(base.device, base.dtype)[None],
            (b[name] * (scale * base.embedding_scale(name))).to(base.device, base.dtype)[None],
            None,
            None,
            spec.kind,
        )
        for name, spec in specs.items()
    }
    rows = join(pairs, base.end_tokens[0])
    own = adapter_flops(specs, {name: len(factor) for name, factor in a.items()})
    bound = Bound(base, None, 1, {}, 0, own)
    with attached(base, terms, {}, differentiable=True), _gradients_seen(base) as reached:
        logits = engine.forward(bound, rows.ids, 1, positions=rows.positions).float()
    prompts, tokens = rows.ids.shape
    # frozen modules hand on the gradients of activations alone; the low-rank products also have their own
    backward = engine.flops.backward(
        {name: base.structure.specs[name] for name in reached},
        {base.structure.layer_of[name] for name in reached if of_attention(name)},
        rows=prompts,
        tokens=tokens,
        head_rows=len(rows.targets),
        head=base.structure.head,
    )
    linear = {name: spec for name, spec in specs.items() if spec.kind == "linear"}
    unneeded = sum(2.0 * len(a[name]) * spec.d_in for name, spec in linear.items() if name not in reached)
    engine.ledger.backward_flops += backward + (2 * own - unneeded) * prompts * tokens
    return cross_entropy(logits, rows.targets.to(logits.device))


@contextmanager
def _gradients_seen(base: Base) -> Iterator[set[str]]:
    """Collects the modules whose input has a gradient: those that a backward pass goes through."""
    reached: set[str] = set()
    handles = []

    def watch(name: str) -> Any:
        def hook(_module: nn.Module, args: tuple[Tensor, ...], _output: Tensor) -> None:
            if args[0].requires_grad:
                reached.add(name)

        return hook

    try:
        for name, spec in base.structure.specs.items():
            if spec.kind == "linear":
                handles.append(base.model.get_submodule(name).register_forward_hook(watch(name)))
        yield reached
    finally:
        for handle in handles:
            handle.remove()
