"""Decoding for all members at once: one loop, one KV cache, rows that have ended leave."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from evolora.engine.batches import pad_left
from evolora.engine.layers import attached
from evolora.engine.passes import Forward
from evolora.engine.sampling import Sampler, uniform_draws
from evolora.engine.structure import accepts
from evolora.engine.terms import Term, take
from evolora.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.engine.bound import Bound, Members
    from evolora.engine.engine import Engine

_LEAVE = 0.8  # rows are dropped when at most this share of them is still at work
_CACHED = 4  # tokens of KV cache per token of the memory limit
_SMALLEST_TEMPERATURE = 1e-6


@dataclass(frozen=True)
class Decoding:
    r"""How completions are decoded.

    Attributes:
        max_new_tokens: a completion ends here at the latest.
        temperature: 0 is greedy; else logits are divided by it and sampled.
        top_p: sample from the smallest set of tokens that holds this much probability.
        seed: of the samples. Members of one id draw alike; copies of a prompt do not.
        stop: a completion also ends where this text appears (``"\n"`` for one-line answers).

    Raises:
        ConfigError: a setting out of range.
    """

    max_new_tokens: int = 32
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: str | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or not 0 <= self.temperature < float("inf") or not 0 < self.top_p <= 1:
            raise ConfigError(
                f"max_new_tokens {self.max_new_tokens}, temperature {self.temperature}, top_p {self.top_p}",
                mend="need max_new_tokens >= 1, temperature >= 0 and 0 < top_p <= 1",
            )


def generate_tokens(
    engine: Engine, members: Members, prompts: Sequence[str], how: Decoding
) -> list[list[list[int]]]:
    """N lists of P completions as token ids, the token that ended each included.

    A completion that ran to ``max_new_tokens`` has no such token. Where ``stop`` is several tokens long,
    completions go on after it.

    Raises:
        InputError: an empty prompt, or one that is too long for the model with what may follow.
        AdapterError: a member does not fit the base.
        ModelError: the model keeps no KV cache that rows can leave.
    """
    temperature = 0.0 if how.temperature < _SMALLEST_TEMPERATURE else how.temperature
    max_new_tokens = how.max_new_tokens
    bound = engine.bind(members)
    encoded = engine.base.text.prompts(prompts, new_tokens=max_new_tokens - 1)
    ids = ["base"] if bound.population is None else list(bound.population.ids)
    copies = [prompts[:i].count(prompt) for i, prompt in enumerate(prompts)]
    found: list[list[list[int]]] = [[[] for _ in prompts] for _ in ids]
    if not prompts:
        return found
    width = max(map(len, encoded))
    cut = engine.plan(bound, len(encoded), max(width, (width + max_new_tokens) // _CACHED))
    for block in cut.blocks(bound.count):
        terms = engine.terms(bound, block)
        for chosen in _batches([len(ids) for ids in encoded], cut.prompts, pads=engine.base.structure.pads):
            draws = None
            if temperature > 0:
                rows = [(ids[m], prompts[p], copies[p]) for m in block for p in chosen]
                draws = uniform_draws(how.seed, max_new_tokens, rows)
            decoder = _Decoder(engine, bound, terms, len(block), [encoded[p] for p in chosen], how.stop)
            for row, tokens in enumerate(decoder.run(max_new_tokens, Sampler(temperature, how.top_p, draws))):
                found[block[row // len(chosen)]][chosen[row % len(chosen)]] = tokens
        terms = {}  # let go before the next block is made
    return found


def _batches(lengths: Sequence[int], most: int, *, pads: bool) -> Iterator[list[int]]:
    """Prompts decoded together, sorted by length; of one length only where the model cannot be padded."""
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    for _, alike in groupby(order, key=lambda i: 0 if pads else lengths[i]):
        together = list(alike)
        yield from (together[first : first + most] for first in range(0, len(together), most))


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
        self.base = engine.base
        self.prompts = list(prompts)
        self.stops = self.base.text.stops(stop)
        model = self.base.model
        self.cache_name = next((n for n in ("past_key_values", "cache") if accepts(model, n)), "")
        self.positions = accepts(model, "position_ids")

    def run(self, max_new_tokens: int, choose: Sampler) -> list[list[int]]:
        """New tokens of every row, the one that ended it included."""
        import torch

        with torch.inference_mode():
            return self._run(max_new_tokens, choose)

    def _run(self, max_new_tokens: int, choose: Sampler) -> list[list[int]]:
        import torch

        base, device = self.base, self.base.device
        ends = torch.tensor(self.stops, device=device)
        total = self.members * len(self.prompts)
        out = torch.full((total, max_new_tokens), base.end_tokens[0], dtype=torch.long, device=device)
        rows = torch.arange(total, device=device)  # which row of `out` each running row is
        running = torch.ones(total, dtype=torch.bool, device=device)
        terms, members, step, left = self.terms, self.members, 0, total
        logits, mask, cache = self._prefill()
        while True:
            with attached(base, terms, self.bound.shared):
                while True:
                    token = choose(logits, rows, step)
                    out[rows[running], step] = token[running]
                    self.engine.ledger.generated_tokens += left
                    running &= ~torch.isin(token, ends)
                    step += 1
                    left = int(running.sum())
                    if left == 0 or step == max_new_tokens:
                        return self._trim(out[:, :step])
                    mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
                    if left <= _LEAVE * len(running):
                        keep, kept = _stay(running, members)
                        if len(keep) <= _LEAVE * len(running):
                            break
                    logits = self._step(token, mask, cache)
            chosen = torch.tensor(keep, device=device)
            terms = take(terms, torch.tensor(kept, device=device))
            members = len(kept)
            cache.batch_select_indices(chosen)
            rows, running, token, mask = rows[chosen], running[chosen], token[chosen], mask[chosen]
            with attached(base, terms, self.bound.shared):
                logits = self._step(token, mask, cache)

    def _prefill(self) -> tuple[Tensor, Tensor, Any]:
        import torch
        from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

        base, bound = self.base, self.bound
        name = type(base.model).__name__
        if not self.cache_name:
            raise ModelError(
                f"{name} keeps no KV cache, so it cannot generate here", where=base.name, mend="score answers"
            )
        ids, mask = pad_left(self.prompts, base.end_tokens[0])
        ids, mask = ids.to(base.device), mask.to(base.device)
        cache = DynamicCache(config=base.model.config)
        # others (hybrids too) keep states that would stay when their rows leave
        if any(type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers):
            raise ModelError(
                f"{name} keeps a recurrent state, not a KV cache, so it cannot generate here",
                where=base.name,
                mend="score answers",
            )
        arguments: dict[str, Any] = {"attention_mask": mask, "use_cache": True, self.cache_name: cache}
        if self.positions:
            arguments["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
        last = torch.arange(1, len(ids) + 1) * ids.shape[1] - 1
        with attached(base, self.terms, bound.shared):
            logits = self.engine.forward(bound, ids, self.members, positions=last, **arguments)
        wide = self.members * len(ids)
        fan = torch.arange(len(ids), device=base.device).repeat(self.members)
        for layer in cache.layers[: bound.start if self.members > 1 else 0]:
            layer.batch_select_indices(fan)
        if cache.get_seq_length() != ids.shape[1] or any(len(layer.keys) != wide for layer in cache.layers):
            raise ModelError(
                f"{name} does not keep its state in the KV cache that it is given",
                where=base.name,
                mend="score answers",
            )
        return logits, mask.repeat(self.members, 1), cache

    def _step(self, token: Tensor, mask: Tensor, cache: Any) -> Tensor:
        import torch

        arguments: dict[str, Any] = {"attention_mask": mask, "use_cache": True, self.cache_name: cache}
        if self.positions:
            arguments["position_ids"] = mask.sum(1, keepdim=True) - 1
        every = torch.arange(len(token), device=self.base.device)
        out = Forward(self.base, 1, 0)(token[:, None], every, **arguments)
        self.engine.count(self.bound, token[:, None], 1, keys=mask.shape[1], head_rows=len(token))
        return out

    def _trim(self, out: Tensor) -> list[list[int]]:
        ends = set(self.stops)
        rows = []
        for tokens in out.tolist():
            end = next((i for i, token in enumerate(tokens) if token in ends), len(tokens))
            rows.append(tokens[: end + 1])
        return rows


def _stay(running: Tensor, members: int) -> tuple[list[int], list[int]]:
    """Rows to keep, and their members: as many rows for each member, those still running first."""
    table: list[list[bool]] = running.view(members, -1).tolist()
    kept = [m for m in range(members) if any(table[m])]
    most, width = max(map(sum, table)), len(table[0])
    keep: list[int] = []
    for member in kept:
        order = sorted(range(width), key=lambda row: not table[member][row])[:most]
        keep.extend(member * width + row for row in sorted(order))
    return keep, kept
