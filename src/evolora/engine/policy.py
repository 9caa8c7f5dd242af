"""Per-token log-probabilities of completions under one adapter, with a graph to its factors.

    log p(y_t | x, y_<t) = z[y_t] / T - log sum_v exp(z[v] / T)

for logits z and a temperature T: the distribution that sampling at T without ``top_p`` draws from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from evolora.engine.training import answer_logits

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.engine.engine import Engine


def log_probs(
    engine: Engine,
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    scale: float,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    temperature: float = 1.0,
) -> Tensor:
    """``[rows, T]`` in nats, zero behind a completion's end; see ``Engine.log_probs``."""
    import torch

    logits, rows = answer_logits(engine, a, b, scale, pairs)
    if temperature != 1:
        logits = logits / temperature
    found = logits.gather(1, rows.targets.to(logits.device)[:, None])[:, 0] - logits.logsumexp(1)
    there = torch.arange(int(rows.lengths.max())) < rows.lengths[:, None]
    return found.new_zeros(there.shape).masked_scatter(there.to(found.device), found)
