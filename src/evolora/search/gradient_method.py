"""The baselines that back-propagate: shown the answers, or told the rewards of their own samples."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from evolora.adapters import Adapter
from evolora.errors import ProtocolError
from evolora.search.searcher import Searcher, check_progress
from evolora.search.state import State

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.problems.rollouts import Rollouts


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
        check_progress(progress, self.name)
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
        check_progress(progress, self.name)
        return self._step(state, problem, float(progress))

    @abstractmethod
    def _step(self, state: State, problem: PolicyProblem, progress: float) -> tuple[State, dict[str, float]]:
        """The next state and the metrics; the progress is checked."""
