"""How far an adapter's next-token distributions are from the base's, on texts that the base itself wrote.

The base samples a continuation of each prompt (temperature 1, seeded). At every token of it, over the whole
vocabulary, with p the adapted and q the base's distribution after the same tokens:

    to_base    KL(p || q) = sum_v p (log p - log q)        what a penalty "KL to the base" means
    from_base  KL(q || p)

in nats per token. Averaged over the base's own samples, ``from_base`` is the divergence of whole texts per
token (chain rule); ``to_base`` is that of the next token at the states that the base visits. Some of it on
task is what was learned; off task it should stay near 0. What is forgotten elsewhere follows ``from_base`` on
the new task more closely than any norm of the weights does (arXiv 2509.04259).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evolora.errors import InputError
from evolora.stats import Interval, mean_interval

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.engine import Engine
    from evolora.engine.engine import Members

    Pair = tuple[list[int], list[int]]

TOKENS = 24
_LOGITS = 16_384  # numbers of logits per token of the memory limit: the base's stand beside the members'
_PART = 64  # rows of logits in float64 at once


@dataclass(frozen=True)
class Divergence:
    """One member's divergence, nats per token; 0 where it computes what the base does.

    Attributes:
        to_base: ``KL(adapted || base)``.
        ci: its 95 % interval over prompts (bootstrap of the prompts' means).
        from_base: ``KL(base || adapted)``.
        tokens: how many positions were compared.
        prompts: of how many prompts.
    """

    to_base: float
    ci: Interval
    from_base: float
    tokens: int
    prompts: int


def continuations(
    engine: Engine, prompts: Sequence[str], *, tokens: int = TOKENS, seed: int = 0
) -> list[Pair]:
    """What the base says after each prompt, sampled at temperature 1: prompt and continuation as token ids.

    Args:
        engine: over the base.
        prompts: P texts, rendered.
        tokens: of a continuation, at most; it ends with the end of text, and where the model's positions do.
        seed: of the samples.

    Raises:
        InputError: no prompts, an empty one, or one that is too long for the model.
    """
    encoded = engine.base.text.prompts(prompts)
    if not encoded:
        raise InputError("there is no prompt to continue", where="divergence")
    if engine.base.max_length is not None:
        tokens = max(1, min(tokens, engine.base.max_length - max(map(len, encoded)) + 1))
    (said,) = engine.generate_tokens(None, prompts, max_new_tokens=tokens, temperature=1.0, seed=seed)
    return list(zip(encoded, said, strict=True))


def divergences(engine: Engine, members: Members, pairs: Sequence[Pair]) -> list[Divergence]:
    """The divergence of every member from the base, at every token of some continuations.

    One forward of the base and one of the members for each chunk of prompts; the logits held at once are
    bounded by the engine's memory limit.

    Args:
        engine: over the base.
        members: as for ``engine.score``.
        pairs: from ``continuations``.

    Raises:
        AdapterError: a member does not fit the base.
    """
    import torch

    from evolora.engine.batches import join
    from evolora.engine.layers import attached

    bound, alone = engine.bind(members), engine.bind(None)
    sums = torch.zeros(2, bound.count, len(pairs), dtype=torch.float64)
    lengths = torch.tensor([len(answer) for _, answer in pairs])
    order = sorted(range(len(pairs)), key=lambda i: len(pairs[i][0]) + len(pairs[i][1]))
    width = max(len(prompt) + len(answer) for prompt, answer in pairs)
    vocabulary = engine.base.structure.specs[engine.base.structure.head].d_out
    cut = engine.plan(bound, len(pairs), max(width, int(lengths.max()) * vocabulary // _LOGITS))
    with torch.inference_mode():
        for block in cut.blocks(bound.count):
            terms = engine.terms(bound, block)
            for first in range(0, len(order), cut.prompts):
                chosen = order[first : first + cut.prompts]
                rows = join([pairs[i] for i in chosen], engine.base.end_tokens[0])
                base = engine.forward(alone, rows.ids, 1, positions=rows.positions)
                with attached(engine.base, terms, bound.shared):
                    found = engine.forward(bound, rows.ids, len(block), positions=rows.positions)
                row_of = torch.repeat_interleave(torch.tensor(chosen), rows.lengths)
                for place, member in enumerate(block):
                    own = found[place * len(base) : (place + 1) * len(base)]
                    sums[:, member].index_add_(1, row_of, token_divergences(own, base).cpu())
    return [_summary(of_member, lengths) for of_member in sums.unbind(1)]


def token_divergences(logits: Tensor, base: Tensor) -> Tensor:
    """``KL(p || q)`` and ``KL(q || p)`` of the rows of logits ``[M, V]``: ``[2, M]``, float64."""
    import torch

    out = torch.empty(2, len(logits), dtype=torch.float64, device=logits.device)
    for first in range(0, len(logits), _PART):
        part = slice(first, first + _PART)
        p, q = logits[part].double().log_softmax(-1), base[part].double().log_softmax(-1)
        gap = p - q
        out[0, part] = (p.exp() * gap).sum(-1)
        out[1, part] = -(q.exp() * gap).sum(-1)
    return out.clamp_min(0)


def _summary(sums: Tensor, lengths: Tensor) -> Divergence:
    tokens = int(lengths.sum())
    to_base, from_base = (total / tokens for total in sums.sum(1).tolist())
    ci = mean_interval((sums[0] / lengths).tolist())
    return Divergence(to_base, ci, from_base, tokens, len(lengths))
