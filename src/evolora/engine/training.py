"""Logits and loss of one adapter with a graph to its factors; the backward pass is counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from evolora.engine.batches import Sequences, join
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

    logits, rows = answer_logits(engine, a, b, scale, pairs)
    return cross_entropy(logits, rows.targets.to(logits.device))


def answer_logits(
    engine: Engine,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    scale: float,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
) -> tuple[Tensor, Sequences]:
    """Logits ``[M, V]`` (float32) that predict the M answer tokens of all rows, and where those stand.

    Where there is a graph to the factors, its backward pass is entered in the ledger beforehand. Without any
    factors it is the base that answers.
    """
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
    own = adapter_flops(specs, {name: len(factor) for name, factor in a.items()})
    inputs = {name: 2.0 * len(a[name]) * spec.d_in for name, spec in specs.items() if spec.kind == "linear"}
    return logits_through(engine, terms, own, inputs, pairs)


def logits_through(
    engine: Engine,
    terms: Mapping[str, Term],
    own: float,
    inputs: Mapping[str, float],
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
) -> tuple[Tensor, Sequences]:
    """The same through terms that are made already.

    Args:
        engine: over the base.
        terms: of one member, with a graph.
        own: FLOPs per token of their forward products.
        inputs: for each linear module, FLOPs per token of handing the gradient on to its input.
        pairs: prompts and completions as token ids.
    """
    base = engine.base
    rows = join(pairs, base.end_tokens[0])
    bound = Bound(base, None, 1, {}, 0, own)
    with attached(base, terms, {}, differentiable=True), _gradients_seen(base) as reached:
        logits = engine.forward(bound, rows.ids, 1, positions=rows.positions).float()
    if not logits.requires_grad:
        return logits, rows
    prompts, tokens = rows.ids.shape
    # frozen modules hand on the gradients of activations alone; the added products also have their own
    backward = engine.flops.backward(
        {name: base.structure.specs[name] for name in reached},
        {base.structure.layer_of[name] for name in reached if of_attention(name)},
        rows=prompts,
        tokens=tokens,
        head_rows=len(rows.targets),
        head=base.structure.head,
    )
    unneeded = sum(cost for name, cost in inputs.items() if name not in reached)
    engine.ledger.backward_flops += backward + (2 * own - unneeded) * prompts * tokens
    return logits, rows


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
