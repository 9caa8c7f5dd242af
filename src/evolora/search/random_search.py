"""Random search: try perturbations of the best adapter so far, keep the best of them if it is better.

    W_i = W + sigma E_i,  i = 1 .. N - 1;    W <- W_j  if  R_j - R_0 = max_i (R_i - R_0) > 0

with fresh low-rank ``E_i`` of unit variance (``perturbation``). Member 0 is W itself, judged again on every
minibatch, so that a lucky minibatch is common to all; R_i - R_0 is the mean over the prompts that both have.
Nothing is estimated and nothing is averaged: selection alone, the least that a search by rewards has to beat.

    around="incumbent"   members lie around W: local random search, a (1 + (N - 1)) evolution strategy
    around="start"       members lie around the start whatever W is: pure random search

Sources: Rastrigin 1963 (local); Solis and Wets 1981 (both, and when they converge); as a baseline for neural
networks Such et al., arXiv 1712.06567.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from evolora.adapters import Adapter, Population, Stack
from evolora.search.method import Method
from evolora.search.origin import Origin, first_deltas, kept_start, start_tensors
from evolora.search.perturbation import Perturbation
from evolora.search.perturbed import Alone
from evolora.search.state import Number, State
from evolora.search.truncation import compress

if TYPE_CHECKING:
    from torch import Tensor

_AT_CENTRE: dict[str, Number] = {"step": 0, "member": 0, "size": 0.0}


class RandomSearch(Method):
    """Search by selection alone; see the module's text."""

    name: ClassVar[str] = "random_search"
    summary: ClassVar[str] = "keeps the best of a few random perturbations: selection alone, the baseline"
    source: ClassVar[str] = "Rastrigin 1963; Solis and Wets 1981; Such et al., arXiv 1712.06567"
    step_options: ClassVar[tuple[str, ...]] = ("sigma",)

    sigma: float = Field(0.02, ge=0, description="Standard deviation of the perturbation of each weight.")
    rank: int = Field(1, ge=1, description="Rank of each member's perturbation.")
    population: int = Field(32, ge=2, description="Members a step, the incumbent among them.")
    around: Literal["incumbent", "start"] = Field(
        "incumbent", description="What the members perturb: the best so far, or the start for ever."
    )
    decay: Literal["linear", "constant"] = Field(
        "linear", description="How sigma falls as the budget is spent."
    )
    export_rank: int | None = Field(
        None,
        ge=1,
        description="Rank of the adapter that comes out. By default the smallest of 8 to 512 that leaves out "
        "at most a tenth (Frobenius).",
    )

    def _first(self, origin: Origin) -> State:
        """See :meth:`Method.init`; a LoRA of any rank can be the start."""
        return origin.state(first_deltas(origin) | start_tensors(origin.start), _AT_CENTRE)

    def members(self, state: State) -> int:
        """How many members a population has: the option ``population``."""
        return self.population

    def adapter(self, state: State, rank: int | None = None) -> Adapter:
        """The incumbent as a LoRA, truncated; its provenance says what that leaves out."""
        kept = kept_start(state)
        modules, lost = compress(self._incumbent(state), state.template, rank or self.export_rank, kept)
        return Adapter(modules, name=self.name, provenance=self._provenance(state) | lost)

    def mean(self, state: State) -> Population:
        """One member: the incumbent, exactly."""
        return Alone(state.template, self._incumbent(state))

    def _propose(self, state: State) -> Population:
        noise = Perturbation(state.seed, state.step, self.rank)
        return _Tries(state, noise, self._sigma(state), self.population)

    def _update(self, state: State, rewards: Tensor, progress: float) -> tuple[State, dict[str, float]]:
        rewards = rewards.double()
        lead = (rewards - rewards[0]).nanmean(dim=1)  # nan without a prompt in common
        known = lead[~lead.isnan()]
        best = int(lead.nan_to_num(nan=-float("inf")).argmax())
        accepted = len(known) > 0 and lead[best].item() > 0
        sigma = self._sigma(state)

        following = state.after(state.tensors, state.numbers, progress)
        if accepted:
            place: dict[str, Number] = {"step": state.step, "member": best, "size": sigma}
            following = state.after(state.tensors, place, progress)
            if self.around == "incumbent":
                moved = {**state.tensors, **self._incumbent(following)}
                following = state.after(moved, _AT_CENTRE, progress)
        before, after = self._incumbent(state), self._incumbent(following)
        return following, {
            "accepted": float(accepted),
            "gain": lead[best].item() if accepted else 0.0,
            "update_norm": _norm({name: after[name] - before[name] for name in after}),
            "delta_norm": _norm(after),
            "no_spread": float(not known.any()),
            "sigma": sigma,
        }

    def _incumbent(self, state: State) -> dict[str, Tensor]:
        """The dense delta of each module: the centre, and the perturbation that the incumbent is."""
        where, found = state.numbers, {}
        noise = Perturbation(state.seed, int(where["step"]), self.rank)
        for name, spec in state.template.items():
            centre = found[name] = state.tensor(name)
            if where["size"] > 0:
                step = noise.dense(name, (spec.d_out, spec.d_in), [int(where["member"])])[0]
                found[name] = step.mul_(where["size"]).to(centre.device).add_(centre)
        return found

    def _sigma(self, state: State) -> float:
        return self.sigma * (1 - state.progress if self.decay == "linear" else 1.0)


class _Tries(Population):
    """The incumbent, then fresh perturbations of the centre."""

    def __init__(self, state: State, noise: Perturbation, sigma: float, members: int) -> None:
        self.specs, self.ranks = state.template, dict.fromkeys(state.template, noise.rank)
        self.ids = tuple(f"{noise.step}.{member}" for member in range(members))
        self.parents = ((f"{noise.step}.centre",),) * members
        self.shared = {name: state.tensor(name) for name in state.template}
        self._noise, self._sigma, self._where = noise, sigma, state.numbers

    def block(self, members: Sequence[int]) -> dict[str, Stack]:
        """See :meth:`Population.block`; each member is a group of its own."""
        import torch

        sizes = [self._sigma if member else self._where["size"] for member in members]
        coefficient = torch.tensor(sizes, dtype=torch.float32) * self._noise.gain
        kept = Perturbation(self._noise.seed, int(self._where["step"]), self._noise.rank)
        stacks = {}
        for name, spec in self.specs.items():
            shape = (spec.d_out, spec.d_in)
            a, b = self._noise.factors(name, shape, members)
            for i, member in enumerate(members):
                if member == 0:
                    own_a, own_b = kept.factors(name, shape, [int(self._where["member"])])
                    a[i], b[i] = own_a[0], own_b[0]
            stacks[name] = Stack(a, b, coefficient, kind=spec.kind)
        return stacks


def _norm(deltas: Mapping[str, Tensor]) -> float:
    return sqrt(sum(delta.norm().item() ** 2 for delta in deltas.values()))
