"""The guard of a search: it looks at validation prompts every few steps, and keeps the best state.

    plateau      no better validation reward for ``patience`` looks: the search ends
    divergence   the validation reward fell significantly below the best (three standard errors of the paired
                 difference), or the state is no longer finite: the best state comes back, with half the step

Evolution strategies drift on after a task has saturated and lose what the base could do before (arXiv
2601.20861): the best state on validation prompts, not the last, is what such a search should leave.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any, Literal

from evolora.errors import ConfigError, RunError
from evolora.search.state import State

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.adapters import Population
    from evolora.problems import Problem

Finding = Literal["better", "no better", "diverged"]
SIGNIFICANT = 3.0  # standard errors
_GOOD = "guard/"


@dataclass(frozen=True)
class Watch:
    """What a guard is asked to do.

    Attributes:
        every: look after so many steps; the cost of looking is in the ledger.
        patience: end after so many looks without a better one; None never ends a search.
        prompts: how many validation prompts are looked at; all if None.
    """

    every: int
    patience: int | None = None
    prompts: int | None = None

    def __post_init__(self) -> None:
        for name in ("every", "patience", "prompts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}", where="watch", mend="it must be at least 1")


class Guard:
    """Looks at the members' centre on validation prompts.

    Args:
        problem: its validation split is looked at.
        watch: when, and how patiently.

    Attributes:
        best: the state with the best validation reward so far, None before the first look.
        value: its mean validation reward.
        halvings: how often the step was halved.
        looks: step and mean validation reward of every look.
    """

    def __init__(self, problem: Problem, watch: Watch) -> None:
        self.problem, self.watch = problem, watch
        self.examples = problem.split("validation")[: watch.prompts]
        self.best: State | None = None
        self.value = float("-inf")
        self.halvings = self.waited = 0
        self.looks: list[tuple[int, float]] = []
        self._rewards: Tensor | None = None

    @property
    def patient_no_more(self) -> bool:
        """Whether as many looks as it has patience for found nothing better."""
        return self.watch.patience is not None and self.waited >= self.watch.patience

    def looked_at(self, state: State) -> bool:
        """Whether the last look was at this step."""
        return bool(self.looks) and self.looks[-1][0] == state.step

    def due(self, state: State) -> bool:
        """Whether it is time to look."""
        return state.step % self.watch.every == 0

    def look(self, state: State, centre: Population) -> Finding:
        """Judges a state by the validation reward of its centre; remembers the better ones."""
        if not finite(state):
            return "diverged"
        rewards = self.problem.judge(centre, self.examples).values[0].double()
        value = rewards.nanmean().item()
        self.looks.append((state.step, value))
        if self._rewards is None:
            self.best = state
            if rewards.isnan().all():  # nothing to compare with yet
                return "no better"
        elif _fell(rewards, self._rewards):
            return "diverged"
        elif not _rose(rewards, self._rewards):
            self.waited += 1
            return "no better"
        self.best, self.value, self._rewards, self.waited = state, value, rewards, 0
        return "better"

    def restore(self, state: State) -> State:
        """The best state in the place of a diverged one: step and progress go on, so its noise is new.

        Raises:
            RunError: there is no good state to go back to.
        """
        if self.best is None:
            raise RunError(
                "the search diverged before anything good was seen", mend="choose a smaller sigma or lr"
            )
        self.halvings += 1
        self.waited = 0
        return replace(self.best, step=state.step, progress=state.progress, turn=state.turn)

    def save(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What a checkpoint needs to bring the guard back: tensors and plain numbers."""
        numbers: dict[str, Any] = {"looks": [list(look) for look in self.looks], "halvings": self.halvings}
        if self.best is None or self._rewards is None:
            return {}, numbers
        tensors = {f"{_GOOD}state/{name}": tensor.contiguous() for name, tensor in self.best.tensors.items()}
        numbers |= {
            "waited": self.waited,
            "value": self.value,
            "step": self.best.step,
            "progress": self.best.progress,
            "state": dict(self.best.numbers),
        }
        return tensors | {f"{_GOOD}rewards": self._rewards}, numbers

    def load(self, state: State, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
        """Takes up what ``save`` left; ``state`` gives the template and the seed."""
        self.looks = [(int(step), float(value)) for step, value in numbers["looks"]]
        self.halvings = int(numbers["halvings"])
        if f"{_GOOD}rewards" not in tensors:
            return
        prefix = f"{_GOOD}state/"
        kept = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        step, progress = int(numbers["step"]), float(numbers["progress"])
        self.best = State(state.template, state.seed, step, progress, kept, numbers["state"])
        self.value, self.waited = float(numbers["value"]), int(numbers["waited"])
        self._rewards = tensors[f"{_GOOD}rewards"]


def finite(state: State) -> bool:
    """Whether every number of a state is finite."""
    return all(bool(tensor.isfinite().all()) for tensor in state.tensors.values())


def own_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint that are the search's own, not the guard's."""
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(_GOOD)}


def _rose(now: Tensor, best: Tensor) -> bool:
    """Better on the prompts that both have values of, and on no fewer prompts."""
    difference = (now - best)[~(now.isnan() | best.isnan())]
    fewer = bool(now.isnan().sum() > best.isnan().sum())
    return not fewer and len(difference) > 0 and difference.mean().item() > 0


def _fell(now: Tensor, best: Tensor) -> bool:
    """Significantly worse where both have values; or most of the values are lost."""
    valued = ~best.isnan()
    difference = (now - best)[valued & ~now.isnan()]
    if 2 * len(difference) < int(valued.sum()):
        return True
    if len(difference) < 2:
        return False
    error = difference.std().item() / sqrt(len(difference))
    return difference.mean().item() < -SIGNIFICANT * max(error, 1e-12)
