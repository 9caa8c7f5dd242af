"""The engine: one forward pass for all members of a population."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evolora.engine.allocator import keep_freed_memory
from evolora.engine.base import Base
from evolora.engine.batches import Plan, join, plan
from evolora.engine.bound import Binder, Bound, Members
from evolora.engine.flops import FlopModel, norm_flops
from evolora.engine.generation import Decoding, generate_tokens
from evolora.engine.ledger import Ledger
from evolora.engine.passes import Forward
from evolora.engine.policy import log_probs
from evolora.engine.scoring import Scores, score
from evolora.engine.terms import Term, prepare
from evolora.engine.training import training_loss
from evolora.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Engine", "Members", "Scores"]


class Engine:
    """Runs populations of adapters over a frozen base.

    Args:
        base: the frozen model.
        max_tokens: tokens of one forward pass (members x prompts x length); the memory limit. By default 4096
            on a CPU, where larger passes are slower, and 65536 elsewhere.
        prefix_reuse: run the layers below the lowest adapted one once per prompt, not once per member.

    Attributes:
        ledger: what has been spent so far.
        bind: checks members against the base and prepares what they share.
    """

    def __init__(self, base: Base, *, max_tokens: int | None = None, prefix_reuse: bool = True) -> None:
        if max_tokens is not None and max_tokens < 1:
            raise InputError(f"max_tokens is {max_tokens}", mend="it must be at least 1")
        if base.device.type == "cpu":
            keep_freed_memory()
        self.base = base
        self.max_tokens = max_tokens or (4096 if base.device.type == "cpu" else 65536)
        self.ledger = Ledger()
        self.flops = FlopModel.of(base)
        self.bind = Binder(base, prefix_reuse=prefix_reuse)

    def log_likelihood(
        self, members: Members, prompts: Sequence[str], answers: Sequence[str], *, stop: str | None = None
    ) -> Tensor:
        """``[N, P]`` sums of log-probabilities (nats) of each answer and its end after its prompt."""
        return self.score(members, prompts, answers, stop=stop).log_likelihood

    def score(
        self, members: Members, prompts: Sequence[str], answers: Sequence[str], *, stop: str | None = None
    ) -> Scores:
        r"""Scores answers by teacher forcing; one forward pass, output head at the answer tokens only.

        Args:
            members: None (the base), an adapter, a list of adapters, or a population of N.
            prompts: P texts.
            answers: P texts; the text that follows the prompt, a leading space included where there is one.
            stop: what ends an answer, beside the end of text (``"\n"`` for one-line answers).

        Raises:
            InputError: different numbers of prompts and answers, an empty prompt, a row that is too long for
                the model, or a ``stop`` that is no single token.
            AdapterError: a member does not fit the base.
        """
        bound = self.bind(members)
        pairs = self.base.text.pairs(prompts, answers, stop)
        found = score(self, bound, pairs, self.base.text.endings(stop))
        self.ledger.evaluations += bound.count * len(prompts)
        return found

    def training_loss(
        self,
        a: Mapping[str, Tensor],
        b: Mapping[str, Tensor],
        scale: float,
        prompts: Sequence[str],
        answers: Sequence[str],
        *,
        stop: str | None = None,
    ) -> Tensor:
        """Mean negative log-likelihood per answer token of one adapter, with a graph to its factors.

        Args:
            a: module path to ``[r, d_in]``.
            b: module path to ``[d_out, r]``.
            scale: multiplies every ``b @ a``.
            prompts: P texts.
            answers: P texts.
            stop: what ends an answer, beside the end of text.

        Raises:
            InputError: as for ``score``, or nothing to train on.
        """
        if not prompts or not a:
            raise InputError("there is nothing to train on", mend="give at least one prompt and one module")
        return training_loss(self, a, b, scale, self.base.text.pairs(prompts, answers, stop))

    def log_probs(
        self,
        a: Mapping[str, Tensor],
        b: Mapping[str, Tensor],
        scale: float,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        *,
        temperature: float = 1.0,
    ) -> Tensor:
        """Log-probabilities (nats) of each token of some completions, with a graph to the factors.

        Args:
            a: module path to ``[r, d_in]``; without any it is the base that answers.
            b: module path to ``[d_out, r]``.
            scale: multiplies every ``b @ a``.
            pairs: prompt and completion as token ids, at least one token each.
            temperature: that of the sampling.

        Returns:
            ``[rows, T]`` with T the longest completion's tokens; zero behind a completion's end.

        Raises:
            InputError: no rows.
        """
        if not pairs:
            raise InputError("there is nothing to train on", mend="give at least one completion")
        return log_probs(self, a, b, scale, pairs, temperature)

    def generate(
        self,
        members: Members,
        prompts: Sequence[str],
        *,
        max_new_tokens: int = 32,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        stop: str | None = None,
    ) -> list[list[str]]:
        r"""Completes every prompt with every member: N lists of P texts, the end and what follows removed.

        Args:
            members: None (the base), an adapter, a list of adapters, or a population of N.
            prompts: P texts.
            max_new_tokens: a completion ends here at the latest.
            temperature: 0 is greedy; else logits are divided by it and sampled.
            top_p: sample from the smallest set of tokens that holds this much probability.
            seed: of the samples. Members of one id draw alike; copies of a prompt do not.
            stop: a completion also ends where this text appears (``"\n"`` for one-line answers).

        Raises:
            ConfigError: a setting out of range.
            InputError: an empty prompt, or one that is too long for the model with what may follow.
            AdapterError: a member does not fit the base.
            ModelError: the model keeps no KV cache that rows can leave.
        """
        how = Decoding(max_new_tokens, temperature, top_p, seed, stop)
        text = self.base.text
        found = generate_tokens(self, members, prompts, how)
        return [[text.completion(tokens, stop) for tokens in rows] for rows in found]

    def generate_tokens(
        self, members: Members, prompts: Sequence[str], **settings: Any
    ) -> list[list[list[int]]]:
        """N lists of P completions as token ids, their ends included; settings as for ``generate``."""
        return generate_tokens(self, members, prompts, Decoding(**settings))

    def embed(self, prompts: Sequence[str]) -> Tensor:
        """The base's last hidden states (what its output head sees), averaged over each prompt: ``[P, d]``.

        Raises:
            InputError: an empty prompt, or one that is too long for the model.
        """
        import torch

        encoded = self.base.text.prompts(prompts)
        bound = self.bind(None)
        out = torch.empty(len(encoded), self.base.structure.specs[self.base.structure.head].d_in)
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
        cut = self.plan(bound, len(encoded), max(map(len, encoded), default=1))
        with torch.inference_mode():
            for first in range(0, len(order), cut.prompts):
                chosen = order[first : first + cut.prompts]
                rows = join([(encoded[i], [0]) for i in chosen], self.base.end_tokens[0])
                hidden = self.forward(bound, rows.ids, 1, positions=None).float()
                for row, index in enumerate(chosen):
                    out[index] = hidden[row, : len(encoded[index])].mean(0).cpu()
        return out

    def plan(self, bound: Bound, prompts: int, width: int) -> Plan:
        """How a call on this population is cut into forwards."""
        return plan(
            bound.count,
            max(1, prompts),
            width,
            max_tokens=self.max_tokens,
            specs=bound.specs,
            ranks=bound.ranks,
            group=bound.group,
            shares_prefix=bound.start > 0,
        )

    def terms(self, bound: Bound, block: Sequence[int]) -> Mapping[str, Term]:
        """The factors of some members, ready to run; what DoRA's norms cost is entered in the ledger."""
        if bound.population is None:
            return {}
        stacks = bound.population.block(block)
        self.ledger.forward_flops += norm_flops(stacks)
        return prepare(self.base, stacks, bound.shared)

    def forward(
        self, bound: Bound, ids: Tensor, members: int, *, positions: Tensor | None, **arguments: Any
    ) -> Tensor:
        """One pass of ``ids [P, T]`` for ``members`` members, rows member by member; entered in the ledger.

        ``positions`` (flat, into ``[P, T]``) chooses where each member's logits are computed: ``[members * M,
        V]``. None returns the input of the output head, ``[rows, T, d]``.
        """
        runner = Forward(self.base, members, bound.start)
        out = runner(ids.to(self.base.device), positions, **arguments)
        head_rows = 0 if positions is None else len(positions)
        self.count(bound, ids, members, keys=ids.shape[1], head_rows=head_rows)
        self.ledger.prompt_tokens += members * ids.numel()
        return out

    def count(self, bound: Bound, ids: Tensor, members: int, *, keys: int, head_rows: int) -> None:
        """Enters the FLOPs of a pass in the ledger."""
        prompts, tokens = ids.shape
        rows = prompts * members
        self.ledger.forward_flops += bound.token_flops * rows * tokens + self.flops.forward(
            rows=rows,
            tokens=tokens,
            keys=keys,
            head_rows=head_rows * members,
            shared_rows=prompts,
            start=bound.start,
        )
