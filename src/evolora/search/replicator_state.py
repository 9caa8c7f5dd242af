"""What replicator search keeps beside the candidates' factors: how they stand, whom they descend from."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from evolora.search.candidates import Candidates
from evolora.search.perturbed import factor_names
from evolora.search.replicator_dynamics import uniform_weights
from evolora.search.state import State

if TYPE_CHECKING:
    from torch import Tensor

ALL = -1  # stands for the weighted mean of all, where a place is meant
NEVER = -1  # the step of the last rewards before there were any


@dataclass(frozen=True, eq=False)
class Standing:
    """One entry a candidate.

    Attributes:
        log_weights: ``[N]`` float64, normalised.
        memory: ``[N]`` float64, of the rewards.
        ancestors: ``[N]``, the place at the start that its line began at; -1: the mean of all.
        descent: ``[n, 1 + N]``, a row for each resampling: the step whose rewards led to it, and each
            candidate's parent, a place in that step's population; -1: the mean of all.
    """

    log_weights: Tensor
    memory: Tensor
    ancestors: Tensor
    descent: Tensor

    @classmethod
    def first(cls, members: int) -> Standing:
        """Equal weights, empty memories, no parents."""
        import torch

        memory = torch.zeros(members, dtype=torch.float64)
        descent = torch.zeros(0, members + 1, dtype=torch.int64)
        return cls(uniform_weights(members), memory, torch.arange(members), descent)

    def taken(self, parents: Tensor, step: int) -> Standing:
        """After resampling: memory and line are the parent's, w = 1 / N."""
        import torch

        row = torch.cat([torch.tensor([step]), parents])[None]
        descent = torch.cat([self.descent, row])
        even = uniform_weights(len(parents))
        return Standing(even, self.memory[parents], self.ancestors[parents], descent)

    def merged(self, step: int) -> Standing:
        """After recombination: the weighted mean memory for all, w = 1 / N, and no line of its own."""
        import torch

        members = len(self.memory)
        memory = (self.log_weights.exp() @ self.memory).expand(members)
        everyone = torch.full((members,), ALL)
        row = torch.cat([torch.tensor([step]), everyone])[None]
        return Standing(uniform_weights(members), memory, everyone, row)

    def record(self, place: int) -> dict[str, Any]:
        """One candidate's ``weight``, ``memory``, ``ancestor`` and ``lineage``.

        The lineage has the id of its forebear at each resampling, the latest first, and ends at a
        recombination with ``STEP.all``.
        """
        lineage, at = [], place
        for step, *parents in reversed(self.descent.tolist()):
            at = parents[at]
            lineage.append(f"{step}.{'all' if at == ALL else at}")
            if at == ALL:
                break
        return {
            "weight": self.log_weights[place].exp().item(),
            "memory": self.memory[place].item(),
            "ancestor": int(self.ancestors[place]),
            "lineage": lineage,
        }


def pack(crowd: Candidates, standing: Standing) -> dict[str, Tensor]:
    """The tensors of a state."""
    found = {field.name: getattr(standing, field.name) for field in fields(standing)}
    for name in crowd.specs:
        key_a, key_b = factor_names(name)
        found |= {key_a: crowd.a[name].contiguous(), key_b: crowd.b[name].contiguous()}
    return found


def unpack(state: State) -> tuple[Candidates, Standing]:
    """The candidates of a state as they were judged, by the names that they were judged under."""
    keys = {name: factor_names(name) for name in state.template}
    a = {name: state.tensor(key) for name, (key, _) in keys.items()}
    b = {name: state.tensor(key) for name, (_, key) in keys.items()}
    standing = Standing(**{field.name: state.tensor(field.name) for field in fields(Standing)})
    judged = state.numbers["judged"]
    when = "start" if judged == NEVER else judged
    ids = [f"{when}.{place}" for place in range(len(standing.memory))]
    return Candidates(state.template, a, b, ids), standing
