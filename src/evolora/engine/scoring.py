"""Teacher-forced scores: what the members say of answers that are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evolora.engine.batches import Sequences, join
from evolora.engine.layers import attached

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.engine.bound import Bound
    from evolora.engine.engine import Engine

_LOGITS = 32_768  # numbers of logits held per token of the memory limit
_PART = 512  # rows of logits worked on at once, so that the float32 copy stays in the cache


@dataclass(frozen=True, eq=False)
class Scores:
    """Teacher-forced scores of N members on P prompts with answers; higher is better.

    Attributes:
        log_likelihood: ``[N, P]``, the sum of log-probabilities of the answer tokens and the end, in nats.
        exact: ``[N, P]`` bool, every one of these tokens is the most likely of the whole vocabulary.
        tokens: ``[P]``, how many tokens were scored.
    """

    log_likelihood: Tensor
    exact: Tensor
    tokens: Tensor


def score(
    engine: Engine, bound: Bound, pairs: Sequence[tuple[list[int], list[int]]], endings: Sequence[int]
) -> Scores:
    """Scores encoded prompts with answers, whose last token stands for any of ``endings``."""
    import torch

    log_likelihood = torch.empty(bound.count, len(pairs))
    exact = torch.empty(bound.count, len(pairs), dtype=torch.bool)
    tokens = torch.tensor([len(answer) for _, answer in pairs], dtype=torch.long)
    if not pairs:
        return Scores(log_likelihood, exact, tokens)
    ends = torch.tensor(endings, device=engine.base.device)
    order = sorted(range(len(pairs)), key=lambda i: len(pairs[i][0]) + len(pairs[i][1]))
    width = max(len(prompt) + len(answer) for prompt, answer in pairs) - 1
    head = int(tokens.max()) * engine.base.structure.specs[engine.base.structure.head].d_out // _LOGITS
    cut = engine.plan(bound, len(pairs), max(width, head))
    with torch.inference_mode():
        for block in cut.blocks(bound.count):
            with attached(engine.base, engine.terms(bound, block), bound.shared):
                for first in range(0, len(order), cut.prompts):
                    chosen = order[first : first + cut.prompts]
                    rows = join([pairs[i] for i in chosen], engine.base.end_tokens[0])
                    logits = engine.forward(bound, rows.ids, len(block), positions=rows.positions)
                    found, right = _sums(logits, rows, len(block), ends)
                    where = (torch.tensor(block)[:, None], torch.tensor(chosen)[None, :])
                    log_likelihood[where], exact[where] = found.cpu(), right.cpu()
    return Scores(log_likelihood, exact, tokens)


def _sums(logits: Tensor, rows: Sequences, members: int, ends: Tensor) -> tuple[Tensor, Tensor]:
    import torch

    targets = rows.targets.to(logits.device).repeat(members)
    found = torch.empty(len(targets), device=logits.device)
    right = torch.empty(len(targets), device=logits.device, dtype=torch.bool)
    final = torch.zeros(len(rows.targets), dtype=torch.bool)
    final[rows.lengths.cumsum(0) - 1] = True
    final = final.to(logits.device).repeat(members)
    for first in range(0, len(targets), _PART):
        part = slice(first, first + _PART)
        some, goal = logits[part].float(), targets[part]
        found[part] = some.gather(1, goal[:, None])[:, 0] - some.logsumexp(1)
        best = some.argmax(1)
        right[part] = torch.where(final[part], torch.isin(best, ends), best == goal)
    row_of = torch.repeat_interleave(torch.arange(len(rows.ids)), rows.lengths).to(logits.device)
    total = torch.zeros(members, len(rows.ids), device=logits.device)
    wrong = torch.zeros_like(total)
    total.index_add_(1, row_of, found.view(members, -1))
    wrong.index_add_(1, row_of, (~right).float().view(members, -1))
    return total, wrong == 0
