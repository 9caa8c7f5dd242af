"""CMA-ES: a Gaussian over a few coordinates of an adapter, whose whole covariance is learned.

    x_i ~ m + sigma N(0, C);    m, C and sigma follow the ranking of the members (cumulative step-size
    adaptation, rank-one and rank-mu updates with negative weights), all as the ``cma`` package does it

The coordinates (``coordinates``) are the singular values of the start adapter or, without one, fixed random
directions in every module: C has d^2 / 2 entries and takes about 100 d evaluations to learn, so d must be
small, and what lies outside the directions can never be found.

The state holds the fitness of every step that was told, the directions and the point reached. The package's
object is made from them by asking and telling again, which gives the same bits (from the same libraries and
number of threads), as all its deviates are counted noise; an object that is at hand is kept, and saves that
work. A step whose members are all alike tells it nothing. A member without a value is told as the median of
the others, where the weights of the ranking are nearly zero.

Source: Hansen, The CMA Evolution Strategy: A Tutorial, arXiv 1604.00772; pycma (BSD-3-Clause).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from math import log
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import numpy as np
from pydantic import Field

from evolora.adapters import Adapter, Population
from evolora.adapters.noise import normal
from evolora.errors import ConfigError, RunError
from evolora.search.coordinates import AtPoints, Coordinates, random_directions, singular_values
from evolora.search.method import Method
from evolora.search.origin import Origin, check_start
from evolora.search.shaping import shape
from evolora.search.state import State
from evolora.search.truncation import compress

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

LIMIT = 1000  # coordinates; a decomposition of C takes a good part of a second there
_APART = 1e-3  # of sigma: other threads only round otherwise, another eigenvector is about 1


class CMA(Method):
    """CMA-ES on a few coordinates of an adapter; see the module's text."""

    name: ClassVar[str] = "cma"
    summary: ClassVar[str] = "CMA-ES on a start adapter's singular values, or on a few random directions"
    source: ClassVar[str] = "The CMA Evolution Strategy: A Tutorial, arXiv 1604.00772"
    step_options: ClassVar[tuple[str, ...]] = ()  # its step size is its own, and learned

    sigma: float = Field(
        0.02,
        ge=0,
        description="Without a start: standard deviation of the perturbation of each weight at first (RMS).",
    )
    sigma_values: float = Field(
        0.1,
        ge=0,
        description="With a start: that of each singular value, in units of the module's largest.",
    )
    directions: int = Field(
        1,
        ge=1,
        description="Coordinates of each module: random directions, or the start's largest singular values.",
    )
    population: int | None = Field(
        None, ge=6, description="Members a step; 4 + 3 ln(coordinates) if not given."
    )
    export: Literal["mean", "best"] = Field(
        "mean",
        description="What comes out: the mean, or the member with the best reward on its own minibatch.",
    )

    def _first(self, origin: Origin) -> State:
        """See :meth:`Method.init`; modules that a start lacks have no coordinates and stay as in the base.

        Raises:
            ConfigError: the ``cma`` package is missing, or there are too many or too few coordinates.
        """
        check_start(origin.template, origin.start)
        idle, used = ("sigma_values", "sigma") if origin.start is None else ("sigma", "sigma_values")
        if idle in self.model_fields_set and used not in self.model_fields_set:
            what = "without a start" if origin.start is None else "with a start"
            raise ConfigError(f"{idle} has no say {what}", where=self.name, mend=f"set {used}")
        if origin.start is None:
            directions = random_directions(origin.template, self.directions, origin.seed)
            return self.begin(directions, self.sigma, origin.seed)
        values = singular_values(origin.template, origin.start, self.directions)
        return self.begin(values, self.sigma_values, origin.seed)

    def begin(self, coordinates: Coordinates, sigma: float, seed: int) -> State:
        """The state before the first step of a search of any coordinates, as of ``merge_weights``.

        Args:
            coordinates: what is searched; the search begins at their ``start``.
            sigma: the first standard deviation of each of them; the options' own are not looked at.
            seed: every random choice follows from it.

        Raises:
            ConfigError: the ``cma`` package is missing, or there are too many or too few coordinates.
        """
        import torch

        _package()
        if not 2 <= coordinates.dimension <= LIMIT:
            raise ConfigError(
                f"{coordinates.dimension} coordinates, where CMA-ES takes 2 to {LIMIT}",
                where=self.name,
                mend="fewer or more layers, targets or directions change that",
            )
        members = self.population or 4 + int(3 * log(coordinates.dimension))
        tensors = coordinates.tensors() | {
            "mean": coordinates.start,
            "best": coordinates.start,
            "start": coordinates.start,
            "history": torch.zeros(0, members, dtype=torch.float64),
            "steps": torch.zeros(0, dtype=torch.int64),  # a guard may put a state back at a later step
        }
        return State(coordinates.specs, seed, tensors=tensors, numbers={"sigma_start": sigma, "sigma": sigma})

    def members(self, state: State) -> int:
        """The option ``population``, or 4 + 3 ln d for d coordinates."""
        return state.tensor("history").shape[1]

    def adapter(self, state: State, rank: int | None = None) -> Adapter:
        """The mean (or best) as a LoRA: exact, unless ``rank`` is below the directions'."""
        modules, lost = self._map(state).modules(state.tensor(self.export)), dict[str, Any]()
        if rank is not None and rank < max(factors.rank for factors in modules.values()):
            deltas = {name: factors.delta() for name, factors in modules.items()}
            modules, lost = compress(deltas, state.template, rank)
        made: dict[str, Any] = {"method": self.name, "seed": state.seed, "steps": state.step}
        return Adapter(modules, name=self.name, provenance=made | self.model_dump() | lost)

    def _propose(self, state: State) -> Population:
        ids = tuple(f"{state.step}.{member}" for member in range(self.members(state)))
        parents = ((f"{state.step}.mean",),) * len(ids)
        return AtPoints(self._map(state), self._points(state), ids, parents)

    def _update(self, state: State, rewards: Tensor, progress: float) -> tuple[State, dict[str, float]]:
        import torch

        fitness = shape(rewards, "raw")
        told = -fitness.values.double()  # zeros without spread
        if fitness.active.any():
            told[~fitness.active] = told[fitness.active].quantile(0.5)
        spread = bool((told != told[0]).any())
        tensors, numbers = dict(state.tensors), dict(state.numbers)
        live = _LIVE.pop(state, None)
        metrics: dict[str, float] = {}
        if spread and state.numbers["sigma_start"] > 0:
            live = live or _replay(state)
            points = live.ask(state.step)
            best = int(told.argmin())
            if -told[best].item() > numbers.get("best_reward", -float("inf")):
                numbers["best_reward"] = -told[best].item()
                tensors["best"] = torch.from_numpy(points[best].copy())
            live.tell(told.numpy())
            tensors["mean"] = torch.from_numpy(live.mean)
            numbers["sigma"] = float(live.strategy.sigma)
            metrics["axis_ratio"] = float(live.strategy.D.max() / live.strategy.D.min())
        tensors["history"] = torch.cat([state.tensor("history"), told[None]])
        tensors["steps"] = torch.cat([state.tensor("steps"), torch.tensor([state.step])])
        following = state.after(tensors, numbers, progress)
        if live is not None:
            _LIVE[following] = live
        coordinates, point = self._map(state), tensors[self.export]
        return following, metrics | {
            "update_norm": coordinates.distance(state.tensor(self.export), point),
            "delta_norm": coordinates.distance(point),
            "no_spread": float(not spread),
            "sigma": float(state.numbers["sigma"]),
        }

    def _points(self, state: State) -> Tensor:
        """What the members of this step are, ``[N, d]``."""
        import torch

        if state.numbers["sigma_start"] == 0:
            return state.tensor("mean").expand(self.members(state), -1)
        if state not in _LIVE:
            _LIVE[state] = _replay(state)
        return torch.from_numpy(np.stack(_LIVE[state].ask(state.step)))

    def _map(self, state: State) -> Coordinates:
        return Coordinates.of_state(state, state.tensor("start"))


@dataclass
class _Live:
    """The package's object of one state, and what it was asked for last."""

    strategy: Any
    noise: _Deviates
    step: int = -1
    points: list[NDArray[np.float64]] = field(default_factory=list)

    def ask(self, step: int) -> list[NDArray[np.float64]]:
        if step != self.step:
            self.step = self.noise.step = step
            self.noise.calls = 0
            self.points = self.strategy.ask()
        return self.points

    def tell(self, fitness: NDArray[np.float64]) -> None:
        self.strategy.tell(self.points, fitness.tolist())

    @property
    def mean(self) -> NDArray[np.float64]:
        """The distribution's mean, in the coordinates even where the package has changed its own."""
        return self.strategy.gp.pheno(self.strategy.mean, copy=True)


@dataclass
class _Deviates:
    """Normal deviates for the package, from counted noise at the address of a step."""

    seed: int
    step: int = 0
    calls: int = 0

    def __call__(self, *shape: int) -> NDArray[np.float64]:
        out = np.empty(shape, np.float32)
        normal(out, seed=self.seed, step=self.step, pair=self.calls, tensor="cma")
        self.calls += 1
        return out.astype(np.float64)


_LIVE: WeakKeyDictionary[State, _Live] = WeakKeyDictionary()  # saves replays, and decides nothing


def _replay(state: State) -> _Live:
    """The package's object after all that was told.

    Raises:
        RunError: it does not arrive where the state did.
    """
    history, mean = state.tensor("history").numpy(), state.tensor("mean").numpy()
    noise, package = _Deviates(state.seed), _package()
    options = {
        "randn": noise,
        "seed": np.nan,  # leaves numpy's global generator alone
        "popsize": history.shape[1],
        "verbose": -9,
        "verb_log": 0,
        # from 300 coordinates on it would be one that needs points of its own among the members
        "AdaptSigma": package.sigma_adaptation.CMAAdaptSigmaCSA,
    }
    start, sigma = state.tensor("start").numpy(), state.numbers["sigma_start"]
    live = _Live(package.CMAEvolutionStrategy(start.copy(), sigma, options), noise)
    for step, fitness in zip(state.tensor("steps").tolist(), history, strict=True):
        live.ask(step)
        if (fitness != fitness[0]).any():  # else the step had no spread, and was not told
            live.tell(fitness)
    if np.abs(live.mean - mean).max() > _APART * live.strategy.sigma:
        raise RunError(
            "the told rewards do not lead to the saved mean",
            where="cma",
            mend="resume with the versions of cma and numpy and the kind of machine that the run began with",
        )
    return live


def _package() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it misses matplotlib, which nothing here needs
            import cma
    except ImportError:
        raise ConfigError(
            "the package cma is not installed", where="cma", mend="pip install 'evolora[cma]'"
        ) from None
    return cma
