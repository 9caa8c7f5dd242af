"""EGGROLL: evolution strategies with low-rank noise.

Source: Evolution Strategies at the Hyperscale, arXiv 2511.16652. Each parameter matrix M is searched by
members ``M +- sigma E_j`` with ``E_j = B_j A_j / sqrt(r)`` (unit variance, fresh each step), and moves by

    M <- (1 - lr weight_decay) M + lr sigma / sqrt(n) sum_j w_j E_j

over n directions. A pair's weight is ``w_j = (f+ - f-) / sqrt(2)``, a one-sided member's ``w_j = f_j``, over
the rms that pure noise gives it. Where the rewards are pure noise the sum has variance n, so the step's RMS
is ``lr * sigma`` whatever N and r are, and T steps are a random walk of length ``lr sigma sqrt(T d)`` in d
dimensions.

    space="weights"   M is a dense float32 delta D of each adapted weight, outside the frozen base; the
                      adapter is its best approximation at ``export_rank``, and says what that leaves out
    space="factors"   M is B (and A) of one LoRA; the adapter is exact. B starts at 0 and A random; noise on A
                      is in units of 1 / sqrt(d_in), the size of its random entries
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from evolora.adapters import Adapter, ModuleSpec, Population
from evolora.search.factors import assemble, bound, check_start, first_factors, product_norm
from evolora.search.method import Method
from evolora.search.optimiser import descend
from evolora.search.perturbation import Perturbation
from evolora.search.perturbed import Alone, AroundDelta, AroundFactors, Layout, factor_names
from evolora.search.shaping import Shaping, shape
from evolora.search.state import Number, State
from evolora.search.truncation import narrow_to, relative_error, truncate

if TYPE_CHECKING:
    from torch import Tensor

_OPTIMISERS: dict[str, tuple[str, dict[str, Any]]] = {
    "momentum": ("SGD", {"momentum": 0.9}),
    "adam": ("Adam", {}),
    "nadam": ("NAdam", {}),
    "rmsprop": ("RMSprop", {}),
    "adagrad": ("Adagrad", {}),
}

_TOLERANCE = 0.1  # of the delta's norm, that an adapter of automatic rank may leave out


class Eggroll(Method):
    """Evolution strategies with low-rank noise; see the module's text for the update."""

    name: ClassVar[str] = "eggroll"
    summary: ClassVar[str] = "evolution strategies with low-rank noise, on the weights or on LoRA factors"
    source: ClassVar[str] = "Evolution Strategies at the Hyperscale, arXiv 2511.16652"

    sigma: float = Field(0.02, ge=0, description="Standard deviation of the perturbation of each parameter.")
    lr: float = Field(
        1.0, ge=0, description="Step size in units of sigma: the step's RMS is lr * sigma under pure noise."
    )
    rank: int = Field(1, ge=1, description="Rank of each member's perturbation.")
    population: int = Field(32, ge=2, description="Members a step; even for antithetic pairs.")
    antithetic: bool = Field(True, description="Members come in pairs with opposite perturbations.")
    shaping: Shaping = Field("pair_rms", description="How rewards become fitness.")
    space: Literal["weights", "factors"] = Field(
        "weights", description="What is searched: the weights or LoRA factors."
    )
    factors: Literal["b", "ab"] = Field("b", description="In space factors: search B alone, or A and B.")
    decay: Literal["linear", "constant"] = Field("linear", description="How lr falls as the budget is spent.")
    decay_sigma: bool = Field(False, description="Whether sigma falls with lr.")
    weight_decay: float = Field(
        0.0, ge=0, description="Pull towards the base: D (or B) shrinks by lr times this a step."
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

    def init(self, template: Mapping[str, ModuleSpec], seed: int, start: Adapter | None = None) -> State:
        """See :meth:`Method.init`.

        A LoRA can be the start: of any rank on the weights, of one up to ``export_rank`` on the factors.
        """
        import torch

        numbers: dict[str, Number] = {"walk": 0.0, "from_base": int(start is None)}
        if self.space == "factors":
            a, b = first_factors(template, self._factor_rank, seed, start)
            keys = {name: factor_names(name) for name in template}
            tensors = {keys[name][0]: a[name] for name in template} | {
                keys[name][1]: b[name] for name in template
            }
            return State(template, seed, tensors=tensors, numbers=numbers)
        check_start(template, start)
        given = {} if start is None else start.modules
        tensors = {
            name: given[name].delta().float() if name in given else torch.zeros(spec.d_out, spec.d_in)
            for name, spec in template.items()
        }
        return State(template, seed, tensors=tensors, numbers=numbers)

    def members(self, state: State) -> int:
        """How many members a population has: the option ``population``."""
        return self.population

    def adapter(self, state: State, rank: int | None = None) -> Adapter:
        """The mean as a LoRA: exact on factors (unless ``rank`` is below theirs), truncated on the weights.

        ``truncation_error`` in the provenance is the relative Frobenius error over all modules,
        ``truncation`` that of each module.
        """
        provenance: dict[str, Any] = {
            "method": self.name,
            "seed": state.seed,
            "steps": state.step,
        } | self.model_dump()
        if self.space == "factors" and (rank is None or rank >= self._factor_rank):
            a, b = self._split(state)
            return Adapter(assemble(state.template, a, b), name=self.name, provenance=provenance)
        rank = rank or self.export_rank
        parts = {
            name: truncate(delta, rank or max(delta.shape), state.template[name].kind)
            for name, delta in self._deltas(state).items()
        }
        if rank is None:
            parts = narrow_to(parts, _TOLERANCE)
        provenance["truncation_error"] = relative_error(parts.values())
        provenance["truncation"] = {name: part.error for name, part in parts.items()}
        return Adapter(
            {name: part.factors for name, part in parts.items()}, name=self.name, provenance=provenance
        )

    def mean(self, state: State) -> Population:
        """One member at the mean, exactly: on the weights it is the dense delta, not its truncation."""
        return super().mean(state) if self.space == "factors" else Alone(state.template, self._deltas(state))

    def _propose(self, state: State) -> Population:
        noise, layout = self._noise(state), Layout(self.population, self.antithetic)
        sigma = self._sigma(state)
        if self.space == "weights":
            return AroundDelta(state.template, self._deltas(state), noise, sigma, layout)
        a, b = self._split(state)
        sigma_a = (
            None
            if self.factors == "b"
            else {name: sigma * bound(spec) for name, spec in state.template.items()}
        )
        return AroundFactors(state.template, a, b, noise, sigma, sigma_a, layout)

    def _update(self, state: State, rewards: Tensor, progress: float) -> tuple[State, dict[str, float]]:
        fitness = shape(rewards, self.shaping, antithetic=self.antithetic)
        weights, active = fitness.values, fitness.active
        if self.antithetic:
            weights, active = (weights[0::2] - weights[1::2]) / sqrt(2), active[0::2]
        weights = weights / (fitness.noise_rms * sqrt(max(1, int(active.sum()))))
        learning = bool(weights.any())
        lr, sigma = self.lr * self._left(state), self._sigma(state)

        tensors, numbers, moved = state.tensors, dict(state.numbers), 0.0
        if learning:
            tensors, moved = self._moved(state, weights, lr, sigma)
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
        if self.space == "weights" and numbers["from_base"] and numbers["walk"] > 0:
            metrics["walk_ratio"] = metrics["delta_norm"] / sqrt(numbers["walk"])
        return following, metrics

    def _moved(
        self, state: State, weights: Tensor, lr: float, sigma: float
    ) -> tuple[dict[str, Tensor], float]:
        """The searched matrices one step on (with the optimiser's memory), and the norm of the step."""
        noise = self._noise(state)
        tensors, squares = dict(state.tensors), 0.0
        for name, unit in self._searched(state).items():
            old = state.tensor(name)
            step = noise.combine(name, (old.shape[0], old.shape[1]), weights, old.device)
            if self.optimiser == "sgd":
                step *= lr * sigma * unit
            else:
                kind, settings = _OPTIMISERS[self.optimiser]
                settings = settings | {"lr": lr * sigma * unit}
                new, memory = descend(kind, {name: old}, {name: step.neg_()}, state.tensors, **settings)
                tensors |= memory
                step = new[name] - old
            squares += step.norm().item() ** 2
            kept = 1 - lr * self.weight_decay if name in self._decaying(state) else 1
            tensors[name] = step.add_(old, alpha=kept)
        return tensors, sqrt(squares)

    def _searched(self, state: State) -> dict[str, float]:
        """The matrices that are searched, with the unit of their noise."""
        if self.space == "weights":
            return dict.fromkeys(state.template, 1.0)
        units: dict[str, float] = {}
        for name, spec in state.template.items():
            key_a, key_b = factor_names(name)
            units |= {key_b: 1.0} if self.factors == "b" else {key_a: bound(spec), key_b: 1.0}
        return units

    def _decaying(self, state: State) -> set[str]:
        return {name if self.space == "weights" else factor_names(name)[1] for name in state.template}

    def _left(self, state: State) -> float:
        return 1 - state.progress if self.decay == "linear" else 1.0

    def _sigma(self, state: State) -> float:
        return self.sigma * (self._left(state) if self.decay_sigma else 1.0)

    @property
    def _factor_rank(self) -> int:
        return self.export_rank or 16

    def _noise(self, state: State) -> Perturbation:
        return Perturbation(state.seed, state.step, self.rank)

    def _split(self, state: State) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        keys = {name: factor_names(name) for name in state.template}
        a = {name: state.tensor(key) for name, (key, _) in keys.items()}
        return a, {name: state.tensor(key) for name, (_, key) in keys.items()}

    def _deltas(self, state: State) -> dict[str, Tensor]:
        if self.space == "weights":
            return {name: state.tensor(name) for name in state.template}
        a, b = self._split(state)
        return {name: b[name] @ a[name] for name in state.template}

    def _delta_norm(self, state: State) -> float:
        if self.space == "factors":
            return product_norm(*self._split(state))
        return sqrt(sum(delta.norm().item() ** 2 for delta in self._deltas(state).values()))
