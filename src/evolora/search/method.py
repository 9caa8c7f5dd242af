"""The protocol that every method keeps: ask for a population, tell its rewards, read off an adapter.

    state = method.init(template, seed)
    population = method.ask(state)
    state, metrics = method.tell(state, rewards, progress)    # rewards [N, P], higher is better, nan = no
    value

A method object is its options: frozen, without any other state. Everything that changes is in the state.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from evolora.adapters import Population
from evolora.errors import ProtocolError
from evolora.search.searcher import Searcher, check_progress
from evolora.search.state import State

if TYPE_CHECKING:
    from torch import Tensor


class Method(Searcher):
    """A search by rewards alone.

    A new one implements ``init``, ``members``, ``_propose``, ``_update`` and ``adapter``.
    """

    @abstractmethod
    def members(self, state: State) -> int:
        """How many members the next population has."""

    def ask(self, state: State) -> Population:
        """The population to evaluate. Asking again gives the same one, bit for bit."""
        population = self._propose(state)
        state.turn.asked = True
        return population

    def tell(self, state: State, rewards: Tensor, progress: float = 0.0) -> tuple[State, dict[str, float]]:
        """Learns from the rewards of the population that was asked for.

        Args:
            state: the state that was asked; it is not changed.
            rewards: ``[N, P]``, one row a member, one column a prompt (the same prompts for all members),
                higher is better. Nan or infinite: no value; a member without any value takes no part.
            progress: the fraction of the budget spent once these rewards are in, 0 to 1. The new state
                records it, and step sizes that decay do so by it; left at 0 nothing decays.

        Returns:
            The state one step later, and what to put down in the journal: ``reward_mean``, ``reward_best``,
            ``reward_std`` (over the members' means; nan if no member has a value), ``failed`` (members
            without any value), ``missing`` (single values), and the method's own.

        Raises:
            ProtocolError: no population was asked for, it was told already, or the shape is not ``[N, P]``.
        """
        if not state.asked:
            if state.turn.told:
                raise ProtocolError(
                    "this state was told already",
                    where=self.name,
                    mend="go on from the state that tell returned",
                )
            raise ProtocolError(
                "tell before ask", where=self.name, mend="call ask(state) and evaluate its population"
            )
        rewards = _checked(rewards, self.members(state), self.name)
        check_progress(progress, self.name)
        following, metrics = self._update(state, rewards, float(progress))
        state.turn.asked, state.turn.told = False, True
        return following, reward_metrics(rewards) | metrics

    @abstractmethod
    def _propose(self, state: State) -> Population:
        """The population of this state; nothing but the state decides it."""

    @abstractmethod
    def _update(self, state: State, rewards: Tensor, progress: float) -> tuple[State, dict[str, float]]:
        """The next state (by ``state.after``) and the method's own metrics; rewards are checked."""


def reward_metrics(rewards: Tensor) -> dict[str, float]:
    """What any journal wants to know of checked rewards ``[N, P]``; see :meth:`Method.tell`."""
    valued = ~rewards.isnan().all(dim=1)
    means = rewards[valued].double().nanmean(dim=1)
    some = len(means) > 0
    return {
        "reward_mean": means.mean().item(),
        "reward_best": means.max().item() if some else float("nan"),
        "reward_std": means.std(correction=0).item() if some else float("nan"),
        "failed": float((~valued).sum()),
        "missing": float(rewards.isnan().sum()),
    }


def _checked(rewards: Any, members: int, where: str) -> Tensor:
    import torch

    table = torch.as_tensor(rewards)
    if table.ndim != 2 or table.shape[0] != members or table.shape[1] == 0:
        raise ProtocolError(
            f"rewards of shape {list(table.shape)} for {members} members",
            where=where,
            mend=f"give one row a member and one column a prompt: [{members}, P]",
        )
    table = table.detach().to("cpu", torch.float32)
    return torch.where(table.isfinite(), table, torch.nan)
