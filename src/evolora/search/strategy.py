"""What the evolution strategies on Gaussian noise share: the estimate, the step, the export.

A strategy moves searched matrices M along a weighted sum of the directions that its members tried:

    M <- (1 - lr weight_decay) M + lr sigma / sqrt(n) sum_j w_j E_j

over n directions. A pair's weight is ``w_j = (f+ - f-) / sqrt(2)``, a one-sided member's ``w_j = f_j``, over
the rms that pure noise gives it. Where the rewards are pure noise the sum has variance n, so the step's RMS
is ``lr * sigma`` whatever N and the rank of E are, and T steps are a random walk of length ``lr sigma sqrt(T
d)`` in d dimensions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from evolora.adapters import Adapter, Population
from evolora.search.method import Method
from evolora.search.optimiser import descend
from evolora.search.origin import Origin, first_deltas, kept_start, start_tensors
from evolora.search.perturbation import Noise
from evolora.search.perturbed import Alone, AroundDelta, Layout
from evolora.search.shaping import Shaping, shape
from evolora.search.state import State
from evolora.search.truncation import compress

if TYPE_CHECKING:
    from torch import Tensor

_ANCHOR = "anchor/"
_OPTIMISERS: dict[str, tuple[str, dict[str, Any]]] = {
    "momentum": ("SGD", {"momentum": 0.9}),
    "adam": ("Adam", {}),
    "nadam": ("NAdam", {}),
    "rmsprop": ("RMSprop", {}),
    "adagrad": ("Adagrad", {}),
}


@dataclass(frozen=True)
class Searched:
    """How one matrix is searched.

    Attributes:
        noise: the directions that its members try.
        step: the RMS of its step under pure noise.
        kept: what weight decay leaves of it.
    """

    noise: Noise
    step: float
    kept: float = 1.0


class Strategy(Method):
    """An evolution strategy on dense deltas D of the weights, which live outside the frozen base.

    A subclass names its noise; one that searches other matrices than D says which (``_searched``), and how
    members and adapter come from them.
    """

    sigma: float = Field(0.02, ge=0, description="Standard deviation of the perturbation of each parameter.")
    lr: float = Field(
        1.0, ge=0, description="Step size in units of sigma: the step's RMS is lr * sigma under pure noise."
    )
    population: int = Field(32, ge=2, description="Members a step; even for antithetic pairs.")
    antithetic: bool = Field(True, description="Members come in pairs with opposite perturbations.")
    shaping: Shaping = Field("pair_rms", description="How rewards become fitness.")
    decay: Literal["linear", "constant"] = Field("linear", description="How lr falls as the budget is spent.")
    decay_sigma: bool = Field(False, description="Whether sigma falls with lr.")
    weight_decay: float = Field(
        0.0, ge=0, description="Pull towards the anchor: D (or B) goes lr times this of the way there a step."
    )
    anchor: Literal["base", "start"] = Field(
        "base", description="Where weight decay pulls to: the base, or the adapter that the search began at."
    )
    optimiser: Literal["sgd", "momentum", "adam", "nadam", "rmsprop", "adagrad"] = Field(
        "sgd", description="What takes the step along the estimate; all but sgd keep dense moments."
    )
    export_rank: int | None = Field(
        None,
        ge=1,
        description="Rank of the adapter that comes out. By default, on the weights the smallest of 8 to 512 "
        "that leaves out at most a tenth (Frobenius); on factors 16, which is the rank searched.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.antithetic and self.population % 2:
            raise ValueError(f"a population of {self.population} has no whole antithetic pairs: make it even")
        if self.shaping == "pair_rms" and not self.antithetic:
            raise ValueError("shaping pair_rms needs antithetic pairs: use centred, zscore or ranks")
        if self.lr * self.weight_decay >= 1:
            raise ValueError("lr * weight_decay must stay below 1")
        return self

    @abstractmethod
    def _noise(self, state: State) -> Noise:
        """The directions of this step."""

    def _first(self, origin: Origin) -> State:
        """See :meth:`Method.init`; a LoRA of any rank can be the start."""
        return self._anchored(origin, first_deltas(origin) | start_tensors(origin.start))

    def _anchored(self, origin: Origin, tensors: Mapping[str, Tensor]) -> State:
        """The first state, with what weight decay pulls to where that is not zero."""
        state = origin.state(tensors, {"walk": 0.0, "from_base": int(origin.start is None)})
        if origin.start is None or self.anchor == "base" or self.weight_decay == 0:
            return state
        pulled = [name for name, searched in self._searched(state).items() if searched.kept != 1]
        return replace(
            state,
            tensors={**state.tensors, **{_ANCHOR + name: state.tensor(name).clone() for name in pulled}},
        )

    def members(self, state: State) -> int:
        """How many members a population has: the option ``population``."""
        return self.population

    def adapter(self, state: State, rank: int | None = None) -> Adapter:
        """The mean as a LoRA, truncated.

        ``truncation_error`` in the provenance is the relative Frobenius error over all modules,
        ``truncation`` that of each module.
        """
        kept = kept_start(state)
        modules, lost = compress(self._deltas(state), state.template, rank or self.export_rank, kept)
        return Adapter(modules, name=self.name, provenance=self._provenance(state) | lost)

    def mean(self, state: State) -> Population:
        """One member at the mean, exactly: the dense deltas, not their truncation."""
        return Alone(state.template, self._deltas(state))

    def _propose(self, state: State) -> Population:
        layout = Layout(self.population, self.antithetic)
        return AroundDelta(
            state.template, self._deltas(state), self._noise(state), self._sigma(state), layout
        )

    def _update(self, state: State, rewards: Tensor, progress: float) -> tuple[State, dict[str, float]]:
        fitness = shape(rewards, self.shaping, antithetic=self.antithetic)
        weights, active = fitness.values, fitness.active
        if self.antithetic:
            weights, active = (weights[0::2] - weights[1::2]) / sqrt(2), active[0::2]
        weights = weights / (fitness.noise_rms * sqrt(max(1, int(active.sum()))))
        learning = bool(weights.any())
        lr, sigma = self._lr(state), self._sigma(state)

        tensors, numbers, moved = state.tensors, dict(state.numbers), 0.0
        if learning:
            tensors, moved = self._moved(state, weights)
            numbers["walk"] += (lr * sigma) ** 2 * sum(
                spec.d_out * spec.d_in for spec in state.template.values()
            )
        following = state.after(tensors, numbers, progress)
        metrics = {
            "fitness_spread": fitness.values[fitness.active].std(correction=0).item() if learning else 0.0,
            "update_norm": moved,
            "delta_norm": self._delta_norm(following),
            "no_spread": float(not learning),
            "sigma": sigma,
            "lr": lr,
        }
        if self._walks_on_weights and numbers["from_base"] and numbers["walk"] > 0:
            metrics["walk_ratio"] = metrics["delta_norm"] / sqrt(numbers["walk"])
        return following, metrics

    def _moved(self, state: State, weights: Tensor) -> tuple[dict[str, Tensor], float]:
        """The searched matrices one step on (with the optimiser's memory), and the norm of the step."""
        tensors, squares = dict(state.tensors), 0.0
        for name, searched in self._searched(state).items():
            old = state.tensor(name)
            step = searched.noise.combine(name, (old.shape[0], old.shape[1]), weights, old.device)
            if self.optimiser == "sgd":
                step *= searched.step
            else:
                kind, settings = _OPTIMISERS[self.optimiser]
                settings = settings | {"lr": searched.step}
                new, memory = descend(kind, {name: old}, {name: step.neg_()}, state.tensors, **settings)
                tensors |= memory
                step = new[name] - old
            squares += step.norm().item() ** 2
            tensors[name] = step.add_(old, alpha=searched.kept)
            if (anchor := state.tensors.get(_ANCHOR + name)) is not None:
                tensors[name].add_(anchor.to(old.device), alpha=1 - searched.kept)
        return tensors, sqrt(squares)

    def _searched(self, state: State) -> dict[str, Searched]:
        """The matrices that are searched, and how."""
        lr = self._lr(state)
        how = Searched(self._noise(state), lr * self._sigma(state), 1 - lr * self.weight_decay)
        return dict.fromkeys(state.template, how)

    def _lr(self, state: State) -> float:
        return self.lr * self._left(state)

    def _left(self, state: State) -> float:
        return 1 - state.progress if self.decay == "linear" else 1.0

    def _sigma(self, state: State) -> float:
        return self.sigma * (self._left(state) if self.decay_sigma else 1.0)

    @property
    def scales(self) -> tuple[str, str]:
        """The options that say how far members are perturbed, and how long a step is in units of that."""
        return "sigma", "lr"

    @property
    def _walks_on_weights(self) -> bool:
        """Whether pure noise would carry the weights along a random walk of known length."""
        return self.shaping != "raw" and self.weight_decay == 0 and self.optimiser == "sgd"

    def _deltas(self, state: State) -> dict[str, Tensor]:
        return {name: state.tensor(name) for name in state.template}

    def _delta_norm(self, state: State) -> float:
        return sqrt(sum(delta.norm().item() ** 2 for delta in self._deltas(state).values()))
