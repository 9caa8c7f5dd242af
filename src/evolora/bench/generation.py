"""Rows of kind ``generation``: greedy decoding by all members, one adapter after another, and PEFT."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from evolora.adapters import Stacked
from evolora.bench.comparison import Comparison
from evolora.bench.members import adapters, noise, texts
from evolora.bench.peers import PeftAdapters
from evolora.bench.plan import GenerationCase
from evolora.engine.batches import pad_left

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.engine import Base, Engine


def measure(engine: Engine, case: GenerationCase, rounds: int) -> dict[str, Any]:
    """One row.

    ``fraction_of_base`` is the speed against the engine's own decoding of as many rows by the base alone
    (HF ``generate`` is not faster); ``vs_sequential`` against the engine with one adapter after another;
    ``vs_peft_loop`` and ``vs_peft_mixed`` against HF ``generate`` with ``set_adapter`` and with
    ``adapter_names``. Ours works from texts to texts, PEFT from token ids to token ids.
    """
    base = engine.base
    held = adapters(noise(base.modules(case.targets), case.members, case.rank))
    stacked = Stacked(held)
    prompts = texts(case.rows)
    looped = min(case.looped or case.members, case.members)
    part = case.members / looped
    new = case.new_tokens

    complete = partial(engine.generate, max_new_tokens=new)

    match = Comparison(base)
    match.add("ours", lambda: complete(stacked, prompts))
    singles = [Stacked([one]) for one in held[:looped]]
    match.add("sequential", lambda: [complete(one, prompts)[0] for one in singles], of=part)
    match.add("base", lambda: complete(None, prompts * case.members), compare=False)
    with match.making("peft_loop", "peft_mixed"):
        peft = PeftGeneration(base, PeftAdapters(base, held), prompts, new)
        match.add("peft_loop", lambda: peft.loop(looped), of=part)
        match.add("peft_mixed", peft.mixed)

    timings = match.run(rounds)
    return {
        "kind": "generation",
        "members": case.members,
        "rank": case.rank,
        "targets": case.targets,
        "rows_per_member": case.rows,
        "tokens": case.new_tokens,
        "dtype": str(base.dtype).removeprefix("torch."),
        "fraction_of_base": timings.ratio("base", "ours"),
        "fraction_range": timings.spread("base", "ours"),
        "vs_sequential": timings.ratio("sequential", "ours"),
        "vs_peft_loop": timings.ratio("peft_loop", "ours"),
        "vs_peft_mixed": timings.ratio("peft_mixed", "ours"),
        "agrees": match.agree,
        "extrapolated_from": looped if looped < case.members else None,
        "reasons": match.reasons,
    }


class PeftGeneration:
    """HF ``generate`` on a PEFT model, greedy, from prepared token ids.

    Args:
        base: its tokenizer makes the ids.
        peft: the adapters.
        prompts: P texts.
        new_tokens: the longest completion.
    """

    def __init__(self, base: Base, peft: PeftAdapters, prompts: list[str], new_tokens: int) -> None:
        self._base, self._peft, self._count = base, peft, len(prompts)
        ids, mask = pad_left([base.encode(prompt) for prompt in prompts], base.end_tokens[0])
        self._ids, self._mask = ids.to(base.device), mask.to(base.device)
        self._settings = {
            "max_new_tokens": new_tokens,
            "do_sample": False,
            "eos_token_id": list(base.end_tokens),
            "pad_token_id": base.end_tokens[0],
        }

    def loop(self, count: int) -> list[list[str]]:
        """Completions of the first members, one after another."""
        found = []
        for name in self._peft.names[:count]:
            self._peft.model.set_adapter(name)
            found.append(self._generate(self._ids, self._mask))
        return found

    def mixed(self) -> list[list[str]]:
        """Completions of all members in one batch."""
        members = len(self._peft.names)
        names = [name for name in self._peft.names for _ in range(self._count)]
        ids, mask = self._ids.repeat(members, 1), self._mask.repeat(members, 1)
        with self._peft.unhooked():
            found = self._generate(ids, mask, adapter_names=names)
        return [found[i : i + self._count] for i in range(0, len(found), self._count)]

    def _generate(self, ids: Tensor, mask: Tensor, **arguments: Any) -> list[str]:
        import torch

        with torch.inference_mode():
            out = self._peft.model.generate(input_ids=ids, attention_mask=mask, **self._settings, **arguments)
        return self._base.tokenizer.batch_decode(out[:, ids.shape[1] :], skip_special_tokens=True)
