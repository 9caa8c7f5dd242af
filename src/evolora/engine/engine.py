"""The engine: one forward pass for all members of a population."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evolora.adapters import Adapter, ModuleSpec, Population, as_population
from evolora.engine.base import Base
from evolora.engine.batches import Plan, Sequences, join, plan, refuse_empty
from evolora.engine.flops import FlopModel, adapter_flops
from evolora.engine.layers import Term, attached, prepare, shared_terms
from evolora.engine.ledger import Ledger
from evolora.engine.passes import Forward
from evolora.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

Members = Population | Adapter | Sequence[Adapter] | None


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


@dataclass(frozen=True, eq=False)
class Bound:
    """A population bound to a base: checked, its shared deltas prepared, its cost known.

    Attributes:
        population: None for the base itself.
        count: members.
        shared: dense terms common to all members.
        start: the first layer with an adapted module; below it rows need no member.
        token_flops: FLOPs per token of one member's own products.
    """

    population: Population | None
    count: int
    shared: Mapping[str, tuple[Tensor, bool]]
    start: int
    token_flops: float

    @property
    def specs(self) -> Mapping[str, ModuleSpec]:
        return {} if self.population is None else self.population.specs

    @property
    def ranks(self) -> Mapping[str, int]:
        return {} if self.population is None else self.population.ranks

    @property
    def group(self) -> int:
        return 1 if self.population is None else self.population.group


class Engine:
    """Runs populations of adapters over a frozen base.

    Args:
        base: the frozen model.
        max_tokens: tokens of one forward pass (members x prompts x length); the memory limit. By default 4096 on a
            CPU, where larger passes are slower, and 65536 elsewhere.
        prefix_reuse: run the layers below the lowest adapted one once per prompt, not once per member.

    Attributes:
        ledger: what has been spent so far.
    """

    def __init__(self, base: Base, *, max_tokens: int | None = None, prefix_reuse: bool = True) -> None:
        if max_tokens is not None and max_tokens < 1:
            raise InputError(f"max_tokens is {max_tokens}", mend="it must be at least 1")
        self.base = base
        self.max_tokens = max_tokens or (4096 if base.device.type == "cpu" else 65536)
        self.prefix_reuse = prefix_reuse
        self.ledger = Ledger()
        self.flops = FlopModel.of(base)
        self._shared: tuple[Mapping[str, Tensor], Mapping[str, tuple[Tensor, bool]]] = ({}, {})

    def log_likelihood(
        self, members: Members, prompts: Sequence[str], answers: Sequence[str], *, stop: str | None = None
    ) -> Tensor:
        """``[N, P]`` sums of log-probabilities (nats) of each answer and its end after its prompt."""
        return self.score(members, prompts, answers, stop=stop).log_likelihood

    def score(
        self, members: Members, prompts: Sequence[str], answers: Sequence[str], *, stop: str | None = None
    ) -> Scores:
        """Scores answers by teacher forcing; one forward pass, output head at the answer tokens only.

        Args:
            members: None (the base), an adapter, a list of adapters, or a population of N.
            prompts: P texts.
            answers: P texts; the text that follows the prompt, a leading space included where there is one.
            stop: what ends an answer, beside the end of text (``"\\n"`` for one-line answers).

        Raises:
            InputError: different numbers of prompts and answers, or an empty prompt.
            AdapterError: a member does not fit the base.
        """
        import torch

        bound = self.bind(members)
        encoded = self._encode(prompts, answers, stop)
        endings = torch.tensor(self.base.endings(stop), device=self.base.device)
        log_likelihood = torch.empty(bound.count, len(prompts))
        exact = torch.empty(bound.count, len(prompts), dtype=torch.bool)
        if not encoded:
            return Scores(log_likelihood, exact, torch.empty(0, dtype=torch.long))
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i][0]) + len(encoded[i][1]))
        width = max(len(p) + len(a) for p, a in encoded) - 1
        cut = self.plan(bound, len(prompts), width)
        with torch.inference_mode():
            for block, terms in self.blocks(bound, cut):
                with attached(self.base, terms, bound.shared):
                    for first in range(0, len(order), cut.prompts):
                        chosen = order[first : first + cut.prompts]
                        rows = join(
                            [encoded[i][0] for i in chosen], [encoded[i][1] for i in chosen], self._pad
                        )
                        found, right = self._score_rows(bound, rows, len(block), endings)
                        where = (torch.tensor(block)[:, None], torch.tensor(chosen)[None, :])
                        log_likelihood[where], exact[where] = found.cpu(), right.cpu()
        self.ledger.evaluations += bound.count * len(prompts)
        return Scores(log_likelihood, exact, torch.tensor([len(a) for _, a in encoded]))

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
        """
        terms = {
            name: Term(
                a[name].to(self.base.dtype)[None],
                (b[name] * scale).to(self.base.dtype)[None],
                None,
                None,
                kind,
            )
            for name, kind in ((name, self.base.structure.specs[name].kind) for name in a)
        }
        encoded = self._encode(prompts, answers, stop)
        rows = join([p for p, _ in encoded], [x for _, x in encoded], self._pad)
        bound = Bound(None, 1, {}, min(self.base.structure.layer_of[name] for name in a), 0.0)
        before = self.ledger.forward_flops
        with attached(self.base, terms, {}, differentiable=True):
            logits = self.forward(bound, rows.ids, 1, positions=rows.positions).float()
        specs = {name: self.base.structure.specs[name] for name in a}
        own = adapter_flops(specs, {name: len(a[name]) for name in a}) * rows.ids.numel()
        self.ledger.forward_flops += own
        # activations' gradients through the layers above the lowest adapter; the frozen weights need none
        above = self.flops.forward(
            rows=len(rows.ids),
            tokens=rows.ids.shape[1],
            keys=2 * rows.ids.shape[1],
            head_rows=len(rows.targets),
            start=bound.start,
            shared_rows=0,
        )
        assert self.ledger.forward_flops >= before
        self.ledger.backward_flops += above + 2 * own
        import torch

        return torch.nn.functional.cross_entropy(logits, rows.targets.to(logits.device))

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
        """N lists of P completions, the end of text removed. See ``evolora.engine.generation``."""
        from evolora.engine.generation import generate

        return generate(
            self,
            members,
            prompts,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            stop=stop,
        )

    def embed(self, prompts: Sequence[str]) -> Tensor:
        """``[P, d]`` float32: the base's last hidden states (the output head's input), averaged over each prompt."""
        import torch

        encoded = [self.base.encode(p) for p in prompts]
        refuse_empty(encoded)
        bound = self.bind(None)
        out: list[Tensor | None] = [None] * len(encoded)
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
        cut = self.plan(bound, len(encoded), max(map(len, encoded), default=1))
        with torch.inference_mode():
            for first in range(0, len(order), cut.prompts):
                chosen = order[first : first + cut.prompts]
                rows = join([encoded[i] for i in chosen], [[0]] * len(chosen), self._pad)
                hidden = self.forward(bound, rows.ids, 1, positions=None).float()
                for row, index in enumerate(chosen):
                    out[index] = hidden[row, : len(encoded[index])].mean(0).cpu()
        return torch.stack([e for e in out if e is not None]) if out else torch.empty(0, 0)

    def bind(self, members: Members) -> Bound:
        """Checks that every member fits the base, and prepares what they share.

        Raises:
            AdapterError: a module is missing, or has another shape.
        """
        if members is None:
            return Bound(None, 1, {}, 0, 0.0)
        population = as_population(members)
        for adapter in getattr(population, "adapters", ()):
            self.base.check(adapter)
        self.base.check_specs(population.specs, None, None, "population")
        if self._shared[0] is not population.shared:
            self._shared = (population.shared, shared_terms(self.base, population.shared))
        layer_of = self.base.structure.layer_of
        touched = [layer_of[name] for name in {*population.specs, *population.shared}]
        start = min(touched, default=0)
        own = adapter_flops(population.specs, population.ranks)
        own += sum(2.0 * m.numel() for m, fused in self._shared[1].values() if not fused)
        shares = self.prefix_reuse and 0 < start < len(self.base.structure.layers)
        return Bound(population, len(population), self._shared[1], start if shares else 0, own)

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

    def blocks(self, bound: Bound, cut: Plan) -> Iterator[tuple[range, Mapping[str, Term]]]:
        """Blocks of members with their factors, made one after another."""
        for block in cut.blocks(bound.count):
            yield (
                block,
                ({} if bound.population is None else prepare(self.base, bound.population.block(block))),
            )

    def forward(
        self, bound: Bound, ids: Tensor, members: int, *, positions: Tensor | None, **arguments: Any
    ) -> Tensor:
        """One pass of ``ids [P, T]`` for ``members`` members, rows member by member; entered in the ledger.

        ``positions`` (flat, into ``[P, T]``) chooses where each member's logits are computed: ``[members * M, V]``. None
        returns the input of the output head, ``[rows, T, d]``.
        """
        runner = Forward(self.base, members, bound.start)
        out = runner(ids.to(self.base.device), positions, **arguments)
        self.count(
            bound, ids, members, keys=ids.shape[1], head_rows=0 if positions is None else len(positions)
        )
        return out

    def count(self, bound: Bound, ids: Tensor, members: int, *, keys: int, head_rows: int) -> None:
        """Enters a pass in the ledger."""
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
        self.ledger.prompt_tokens += rows * tokens

    @property
    def _pad(self) -> int:
        return self.base.end_tokens[0]

    def _encode(
        self, prompts: Sequence[str], answers: Sequence[str], stop: str | None
    ) -> list[tuple[list[int], list[int]]]:
        if len(prompts) != len(answers):
            raise InputError(
                f"{len(prompts)} prompts and {len(answers)} answers", mend="give one answer a prompt"
            )
        encoded = [self.base.encode(p) for p in prompts]
        refuse_empty(encoded)
        end = self.base.endings(stop)[0]
        return [(p, [*self.base.encode(a, answer=True), end]) for p, a in zip(encoded, answers, strict=True)]

    def _score_rows(
        self, bound: Bound, rows: Sequences, members: int, endings: Tensor
    ) -> tuple[Tensor, Tensor]:
        import torch

        logits = self.forward(bound, rows.ids, members, positions=rows.positions)
        targets = rows.targets.to(logits.device).repeat(members)
        found = torch.empty(len(targets), device=logits.device)
        right = torch.empty(len(targets), device=logits.device, dtype=torch.bool)
        last = torch.zeros(len(rows.targets), dtype=torch.bool)
        last[rows.lengths.cumsum(0) - 1] = True
        last = last.to(logits.device).repeat(members)
        for part in torch.arange(len(targets), device=logits.device).split(512):
            some, goal = logits[part[0] : part[-1] + 1].float(), targets[part]
            found[part] = some.gather(1, goal[:, None])[:, 0] - some.logsumexp(1)
            best = some.argmax(1)
            right[part] = torch.where(last[part], torch.isin(best, endings), best == goal)
        row_of = torch.repeat_interleave(torch.arange(len(rows.ids)), rows.lengths).to(logits.device)
        total = torch.zeros(members, len(rows.ids), device=logits.device)
        wrong = torch.zeros_like(total)
        total.index_add_(1, row_of, found.view(members, -1))
        wrong.index_add_(1, row_of, (~right).float().view(members, -1))
        return total, wrong == 0
