"""The gradient of a mean log-likelihood with respect to the weights: what a strategy on them estimates.

    R(D) = 1/P sum_p 1/T_p sum_t log p(y_t | x, y_<t; W + D),     returned: R and dR/dD of each module

That is the mean of the reward ``logprob``. The deltas are dense leaves beside the frozen weights, so that a
quantised base has a gradient, too; prompts go through in chunks, and only the gradients add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from evolora.adapters import DENSE
from evolora.engine.flops import adapter_flops
from evolora.engine.terms import Term
from evolora.engine.training import logits_through

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.engine.engine import Engine

_TOKENS = 4  # a graph is held for a fourth of the memory limit's tokens


def delta_gradients(
    engine: Engine,
    deltas: Mapping[str, Tensor],
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
) -> tuple[float, dict[str, Tensor]]:
    """The mean reward at ``W + D``, nats, and its gradients, float32 on the CPU.

    Args:
        engine: over the base.
        deltas: module to D ``[d_out, d_in]``.
        pairs: P prompts and answers as token ids, the ends included.
    """
    import torch

    base = engine.base
    specs = {name: base.structure.specs[name] for name in deltas}
    leaves = {
        name: delta.detach().to(base.device, torch.float32).clone().requires_grad_()
        for name, delta in deltas.items()
    }
    own = adapter_flops(specs, dict.fromkeys(specs, DENSE))
    inputs = {name: 2.0 * s.d_out * s.d_in for name, s in specs.items() if s.kind == "linear"}
    width = max(len(prompt) + len(answer) for prompt, answer in pairs)
    each, total = max(1, engine.max_tokens // (_TOKENS * width)), 0.0
    for first in range(0, len(pairs), each):
        terms = {}
        for name, leaf in leaves.items():
            own_delta = (leaf * base.embedding_scale(name)).to(base.dtype)[None]
            terms[name] = Term(None, own_delta, None, None, specs[name].kind)
        logits, rows = logits_through(engine, terms, own, inputs, pairs[first : first + each])
        found = logits.gather(1, rows.targets.to(logits.device)[:, None])[:, 0] - logits.logsumexp(1)
        weights = torch.repeat_interleave(1 / (rows.lengths * len(pairs)), rows.lengths).to(found.device)
        reward = (found * weights).sum()
        reward.backward()
        total += reward.item()
    gradients = {name: leaf.grad if leaf.grad is not None else leaf * 0 for name, leaf in leaves.items()}
    return total, {name: gradient.detach().cpu() for name, gradient in gradients.items()}
