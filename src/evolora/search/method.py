"""The protocol that every method keeps: ask for a population, tell its rewards, read off an adapter.

    state = method.init(template, seed)
    population = method.ask(state)
    state, metrics = method.tell(state, rewards, progress)    # rewards [N, P], higher is better, nan = no
    value

A method object is its options: frozen, without any other state. Everything that changes is in the state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from evolora.adapters import Adapter, ModuleSpec, Population, as_population
from evolora.errors import ProtocolError
from evolora.search.options import Options
from evolora.search.origin import Origin
from evolora.search.state import State

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.problems.rollouts import Rollouts


class Searcher(Options, ABC):
    """What methods with and without gradients share.

    Attributes:
        name: as in ``make_method`` and ``--method``.
        summary: one line for ``evolora methods``.
        source: the paper it comes from.
        needs_norms: whether ``init`` must be told the norms of the base's weights.
        step_options: the options that a step's size is proportional to.
        spread_advice: what may help where all rewards are alike.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    needs_norms: ClassVar[bool] = False
    step_options: ClassVar[tuple[str, ...]] = ("lr",)
    spread_advice: ClassVar[str] = "a larger sigma"

    @property
    def least_batch(self) -> int:
        """How many prompts a step needs at least."""
        return 1

    def init(
        self,
        template: Mapping[str, ModuleSpec],
        seed: int,
        start: Adapter | None = None,
        norms: Mapping[str, Tensor] | None = None,
    ) -> State:
        """The state before the first step.

        Args:
            template: the shapes of the modules to adapt.
            seed: every random choice follows from it.
            start: an adapter to start from; modules that it does not name start at the base.
            norms: module to the norms of its base weight, one per output channel, ``[d_out]``
                (``Base.weight_norms``); only methods with ``needs_norms`` look at them.

        Raises:
            ProtocolError: the template names no module.
            AdapterError: ``start`` does not fit the template, or is one that this method cannot start from.
        """
        return self._first(Origin(template, seed, start, norms))

    @abstractmethod
    def _first(self, origin: Origin) -> State:
        """See :meth:`init`."""

    @abstractmethod
    def adapter(self, state: State, rank: int | None = None) -> Adapter:
        """The adapter that the search has arrived at.

        Args:
            state: any state of this method.
            rank: the largest rank it may have; the method's own choice by default. Where that truncates, the
                relative error (Frobenius) stands in the adapter's provenance as ``truncation_error``.
        """

    def halved(self, times: int) -> Self:
        """The same method with its steps halved that many times."""
        smaller = {name: getattr(self, name) / 2**times for name in self.step_options}
        return self.model_copy(update=smaller)

    def mean(self, state: State) -> Population:
        """One member: what the search has arrived at, exactly (never truncated)."""
        return as_population(self.adapter(state))

    def members_to_export(self, state: State) -> Mapping[str, Adapter]:
        """The population that stands beside the adapter, by name; none for a search of a single point.

        What ``index.json`` says of a member stands in its provenance under ``member``.
        """
        return {}

    def _provenance(self, state: State) -> dict[str, Any]:
        """What the adapters of this search say of how they were made."""
        return {"method": self.name, "seed": state.seed, "steps": state.step} | self.model_dump()


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
        _check_progress(progress, self.name)
        following, metrics = self._update(state, rewards, float(progress))
        state.turn.asked, state.turn.told = False, True
        return following, reward_metrics(rewards) | metrics

    @abstractmethod
    def _propose(self, state: State) -> Population:
        """The population of this state; nothing but the state decides it."""

    @abstractmethod
    def _update(self, state: State, rewards: Tensor, progress: float) -> tuple[State, dict[str, float]]:
        """The next state (by ``state.after``) and the method's own metrics; rewards are checked."""


class TrainingEngine(Protocol):
    """What a gradient method needs of the engine."""

    def training_loss(
        self,
        a: dict[str, Tensor],
        b: dict[str, Tensor],
        scale: float,
        prompts: Sequence[str],
        answers: Sequence[str],
        *,
        stop: str | None = None,
    ) -> Tensor:
        """Mean negative log-likelihood of the answers and their ends, differentiable in ``a`` and ``b``."""


class GradientMethod(Searcher):
    """A baseline that is shown the answers and back-propagates."""

    def step(
        self,
        state: State,
        engine: TrainingEngine,
        examples: Sequence[tuple[str, str]],
        progress: float,
        stop: str | None = None,
    ) -> tuple[State, dict[str, float]]:
        """One update.

        Args:
            state: it is not changed.
            engine: computes the loss of the factors.
            examples: prompt and answer, each rendered.
            progress: the fraction of the budget spent once this step is done (for step t of T, from 0: ``(t +
                1) / T``; where a step's cost is only known afterwards, the spent fraction extrapolated by one
                step). The step size is that of the middle of the step, between the state's progress and this.
            stop: what ends an answer beside the end of text.

        Returns:
            The state one step later, and the metrics ``loss`` (before the update), ``grad_norm``, ``lr``,
            ``update_norm``, ``delta_norm``, ``failed`` (1 if the loss was not finite and nothing was
            updated).

        Raises:
            ProtocolError: no examples, or a progress outside 0 to 1.
        """
        if not examples:
            raise ProtocolError("a step without examples", where=self.name)
        _check_progress(progress, self.name)
        return self._step(state, engine, examples, float(progress), stop)

    @abstractmethod
    def _step(
        self,
        state: State,
        engine: TrainingEngine,
        examples: Sequence[tuple[str, str]],
        progress: float,
        stop: str | None,
    ) -> tuple[State, dict[str, float]]:
        """The next state and the metrics; the arguments are checked."""


class PolicyProblem(Protocol):
    """What a policy method needs of a problem."""

    def rollout(self, policy: Adapter, samples: int, step: int, temperature: float) -> Rollouts:
        """``samples`` completions of each of the step's prompts, drawn from the policy, and their rewards."""

    def log_probs(
        self,
        a: Mapping[str, Tensor],
        b: Mapping[str, Tensor],
        scale: float,
        rollouts: Rollouts,
        rows: Sequence[int],
    ) -> Tensor:
        """``[len(rows), T]``, differentiable in ``a`` and ``b``; without any of them the base's own."""


class PolicyMethod(Searcher):
    """A baseline that samples, is told rewards alone, and back-propagates through its own probabilities."""

    spread_advice: ClassVar[str] = "a higher temperature, more samples of a prompt"

    def step(self, state: State, problem: PolicyProblem, progress: float) -> tuple[State, dict[str, float]]:
        """One update: samples, rewards, gradients.

        Args:
            state: it is not changed.
            problem: samples and judges completions, and says how likely they were.
            progress: as for :meth:`GradientMethod.step`.

        Returns:
            The state one step later, and the metrics of :meth:`Method.tell` (the g-th completions of all
            prompts stand for member g) with ``loss``, ``kl`` (to the base, nats a token; nan where it is not
            measured), ``clip_fraction`` (of the tokens), ``completion_length`` (tokens), ``no_spread`` (1 if
            no prompt's completions differed in reward and nothing was updated), ``not_finite`` (1 if the loss
            or its gradient was not finite and nothing was updated), ``grad_norm``, ``lr``, ``update_norm``,
            ``delta_norm``.

        Raises:
            ProtocolError: a progress outside 0 to 1.
        """
        _check_progress(progress, self.name)
        return self._step(state, problem, float(progress))

    @abstractmethod
    def _step(self, state: State, problem: PolicyProblem, progress: float) -> tuple[State, dict[str, float]]:
        """The next state and the metrics; the progress is checked."""


AnyMethod = Method | GradientMethod | PolicyMethod


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


def _check_progress(progress: float, where: str) -> None:
    if not 0 <= progress <= 1:
        raise ProtocolError(
            f"a progress of {progress}", where=where, mend="give the spent fraction of the budget, 0 to 1"
        )
