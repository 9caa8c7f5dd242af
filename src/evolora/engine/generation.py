"""Decoding for all members at once: one loop, one KV cache, rows that have ended leave.

A sample depends on (seed, member's id, prompt, which copy of the prompt, position) alone, through one uniform number per token
and the inverse of the cumulative distribution: how rows are batched never changes a draw (up to rounding of the
logits).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evolora.adapters import noise
from evolora.engine.batches import pad_left, refuse_empty
from evolora.engine.layers import Term, attached
from evolora.engine.passes import Forward
from evolora.engine.structure import accepts
from evolora.errors import ConfigError, ModelError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from evolora.engine.engine import Bound, Engine, Members

_LEAVE = 0.8  # rows are dropped when at most this share of them is still at work


def generate(
    engine: Engine,
    members: Members,
    prompts: Sequence[str],
    *,
    max_new_tokens: int = 32,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    stop: str | None = None,
) -> list[list[str]]:
    """Completes every prompt with every member.

    Args:
        engine: over the base.
        members: None (the base), an adapter, a list of adapters, or a population of N.
        prompts: P texts.
        max_new_tokens: a completion ends here at the latest.
        temperature: 0 is greedy; else logits are divided by it and sampled.
        top_p: sample from the smallest set of tokens that holds this much probability.
        seed: of the samples.
        stop: a completion also ends where this text appears (``"\\n"`` for one-line answers); it is removed.

    Returns:
        N lists of P texts; the end of text and what follows is removed.

    Raises:
        ConfigError: a setting out of range.
        AdapterError: a member does not fit the base.
        ModelError: the model keeps no KV cache that rows can leave.
    """
    import torch

    if max_new_tokens < 1 or temperature < 0 or not 0 < top_p <= 1:
        raise ConfigError(
            f"max_new_tokens {max_new_tokens}, temperature {temperature}, top_p {top_p}",
            mend="need max_new_tokens >= 1, temperature >= 0 and 0 < top_p <= 1",
        )
    bound = engine.bind(members)
    encoded = [engine.base.encode(prompt) for prompt in prompts]
    refuse_empty(encoded)
    ids = ["base"] if bound.population is None else list(bound.population.ids)
    copies = [prompts[:i].count(prompt) for i, prompt in enumerate(prompts)]
    texts = [[""] * len(prompts) for _ in ids]
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
    width = max(map(len, encoded), default=1)
    cut = engine.plan(bound, len(encoded), width)
    with torch.inference_mode():
        for block, terms in engine.blocks(bound, cut):
            for first in range(0, len(order), cut.prompts):
                chosen = order[first : first + cut.prompts]
                draws = None
                if temperature > 0:
                    draws = [
                        noise.uniform(
                            max_new_tokens,
                            seed=seed,
                            pair=copies[p],
                            tensor=f"{ids[m]}\0{prompts[p]}",
                            purpose="sample",
                        )
                        for m in block
                        for p in chosen
                    ]
                decoder = _Decoder(engine, bound, terms, len(block), [encoded[p] for p in chosen], stop)
                rows = decoder.run(max_new_tokens, _Chooser(temperature, top_p, draws))
                for row, tokens in enumerate(rows):
                    member, prompt = block[row // len(chosen)], chosen[row % len(chosen)]
                    text = engine.base.tokenizer.decode(tokens, skip_special_tokens=True)
                    texts[member][prompt] = text if stop is None else text.split(stop)[0]
    return texts


class _Chooser:
    """The next token of every row, from its logits."""

    def __init__(self, temperature: float, top_p: float, draws: Sequence[np.ndarray] | None) -> None:
        import numpy as np
        import torch

        self.temperature, self.top_p = temperature, top_p
        self.draws = None if draws is None else torch.from_numpy(np.stack(draws))

    def __call__(self, logits: Tensor, rows: Tensor, step: int) -> Tensor:
        import torch

        if self.draws is None:
            return logits.argmax(-1)
        probability = torch.softmax(logits.float() / self.temperature, -1)
        if self.top_p < 1:
            ranked, where = probability.sort(-1, descending=True)
            ranked[ranked.cumsum(-1) - ranked >= self.top_p] = 0
            probability = torch.zeros_like(probability).scatter_(-1, where, ranked)
        mass = probability.double().cumsum(-1)
        draw = self.draws[rows.cpu(), step].to(mass.device)[:, None] * mass[:, -1:]
        # right=True never lands on a token of probability zero
        return torch.searchsorted(mass, draw, right=True)[:, 0].clamp_(max=mass.shape[-1] - 1)


class _Decoder:
    """Decodes one block of members on one set of prompts, rows member by member."""

    def __init__(
        self,
        engine: Engine,
        bound: Bound,
        terms: Mapping[str, Term],
        members: int,
        prompts: Sequence[Sequence[int]],
        stop: str | None,
    ) -> None:
        self.engine, self.bound, self.terms, self.members = engine, bound, terms, members
        self.prompts = list(prompts)
        self.stops = engine.base.stops(stop)
        self.cache_name = next(
            (n for n in ("past_key_values", "cache") if accepts(engine.base.model, n)), None
        )

    def run(self, max_new_tokens: int, choose: _Chooser) -> list[list[int]]:
        """New tokens of every row, without the end."""
        import torch

        base = self.engine.base
        ends = torch.tensor(self.stops, device=base.device)
        total = self.members * len(self.prompts)
        out = torch.full((total, max_new_tokens), base.end_tokens[0], dtype=torch.long, device=base.device)
        rows = torch.arange(total, device=base.device)  # which row of `out` each running row is
        running = torch.ones(total, dtype=torch.bool, device=base.device)
        logits, mask, cache = self._prefill()
        terms, members = self.terms, self.members
        step = 0
        while True:
            with attached(base, terms, self.bound.shared):
                while True:
                    token = choose(logits, rows, step)
                    out[rows[running], step] = token[running]
                    running &= ~torch.isin(token, ends)
                    step += 1
                    left = int(running.sum())
                    if left == 0 or step == max_new_tokens:
                        self.engine.ledger.generated_tokens += int(
                            (out[:, :step] != base.end_tokens[0]).sum()
                        )
                        return self._trim(out, step)
                    if left <= _LEAVE * len(running):
                        keep, kept = self._stay(running, members)
                        if len(keep) <= _LEAVE * len(running):
                            break
                    mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
                    logits = self._step(token, mask, cache)
            chosen = torch.tensor(keep, device=base.device)
            if self.terms:
                terms = {
                    path: term.take(torch.tensor(kept, device=base.device)) for path, term in terms.items()
                }
            members = len(kept)
            cache.batch_select_indices(chosen)
            rows, running, token, mask = rows[chosen], running[chosen], token[chosen], mask[chosen]
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
            with attached(base, terms, self.bound.shared):
                logits = self._step(token, mask, cache)

    def _prefill(self) -> tuple[Tensor, Tensor, Any]:
        import torch
        from transformers import DynamicCache

        base, bound = self.engine.base, self.bound
        ids, mask = pad_left(self.prompts, base.end_tokens[0])
        cache = DynamicCache(config=base.model.config)
        arguments: dict[str, Any] = {"attention_mask": mask.to(base.device), "use_cache": True}
        if self.cache_name is None:
            raise ModelError(f"{type(base.model).__name__} keeps no KV cache", where=base.name)
        arguments[self.cache_name] = cache
        if accepts(base.model, "position_ids"):
            arguments["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0).to(base.device)
        last = torch.arange(1, len(ids) + 1) * ids.shape[1] - 1
        with attached(base, self.terms, bound.shared):
            logits = self.engine.forward(bound, ids, self.members, positions=last, **arguments)
        if not hasattr(cache, "batch_select_indices") or cache.get_seq_length() != ids.shape[1]:
            raise ModelError(
                f"{type(base.model).__name__} keeps a state that cannot be batched", where=base.name
            )
        wide = self.members * len(ids)
        fan = torch.arange(len(ids), device=base.device).repeat(self.members)
        for layer in cache.layers[: bound.start if self.members > 1 else 0]:
            layer.batch_select_indices(fan)
        if any(layer.keys.shape[0] != wide for layer in cache.layers):
            raise ModelError(f"{type(base.model).__name__} shares its cache between rows", where=base.name)
        return logits, mask.to(base.device).repeat(self.members, 1), cache

    def _step(self, token: Tensor, mask: Tensor, cache: Any) -> Tensor:
        import torch

        base = self.engine.base
        arguments: dict[str, Any] = {"attention_mask": mask, "use_cache": True, self.cache_name: cache}
        if accepts(base.model, "position_ids"):
            arguments["position_ids"] = mask.sum(1, keepdim=True) - 1
        every = torch.arange(len(token), device=base.device)
        out = Forward(base, 1, 0)(token[:, None], every, **arguments)
        self.engine.count(self.bound, token[:, None], 1, keys=mask.shape[1], head_rows=len(token))
        return out

    def _stay(self, running: Tensor, members: int) -> tuple[list[int], list[int]]:
        """Rows to keep, and their members: as many rows for each member, those still running first."""
        table = running.view(members, -1)
        counts = table.sum(1)
        kept = [m for m in range(members) if counts[m]]
        most = int(counts.max())
        width = table.shape[1]
        keep = []
        for member in kept:
            order = sorted(range(width), key=lambda row: not table[member, row])[:most]
            keep.extend(member * width + row for row in sorted(order))
        return keep, kept

    def _trim(self, out: Tensor, steps: int) -> list[list[int]]:
        ends = set(self.engine.base.end_tokens)
        rows = []
        for tokens in out[:, :steps].tolist():
            stop = next((i for i, token in enumerate(tokens) if token in ends), steps)
            rows.append(tokens[:stop])
        return rows
