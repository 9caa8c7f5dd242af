"""Decomposed EGGROLL: evolution strategies on DoRA's decomposition of the weights.

    W' = m * (W + B A) / ||W + B A||,    m = ||W|| * (1 + s)        a norm, an m and an s per output channel

Direction and magnitude are perturbed in the same members, each with its own noise, sigma and step:

    B +- sigma E_j (and A) with EGGROLL's low-rank noise,    s +- sigma_magnitude z_j with z_j Gaussian

s is the relative change of m, so that one sigma means the same for a channel of any norm, and ``B = 0, s =
0`` is the base. It enters linearly: members of a pair are mirror images, and a gradient trainer's magnitude
of any sign can be the start. ``strategy`` has the update.

Ablations: ``direction_only`` keeps s (the rows keep their norms, and turn), ``magnitude_only`` keeps B (from
the base on: zero; the rows are rescaled, and never turn).

Sources: DoRA, arXiv 2402.09353; Evolution Strategies at the Hyperscale, arXiv 2511.16652.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import hypot
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from evolora.adapters import Adapter, ModuleSpec, Population, Stack, as_population
from evolora.errors import ModelError, ProtocolError
from evolora.search.factors import assemble, bound, product_norm, split
from evolora.search.origin import Origin, check_start, first_factors
from evolora.search.perturbation import FullRank, Perturbation
from evolora.search.perturbed import AroundFactors, Layout, factor_names
from evolora.search.state import State
from evolora.search.strategy import Searched, Strategy

if TYPE_CHECKING:
    from torch import Tensor


class Decomposed(Strategy):
    """Evolution strategies on direction and magnitude; see the module's text."""

    name: ClassVar[str] = "decomposed"
    summary: ClassVar[str] = "EGGROLL on DoRA's magnitude and direction, each with its own noise and step"
    source: ClassVar[str] = "DoRA, arXiv 2402.09353; Evolution Strategies at the Hyperscale, arXiv 2511.16652"
    needs_norms: ClassVar[bool] = True
    step_options: ClassVar[tuple[str, ...]] = ("lr", "lr_magnitude")

    sigma: float = Field(
        0.05,
        ge=0,
        description="Standard deviation of the noise on each entry of B; A's is 1/sqrt(d_in) of it.",
    )
    sigma_magnitude: float = Field(
        0.02, ge=0, description="Standard deviation of the perturbation of s, the relative change of m."
    )
    lr_magnitude: float = Field(1.0, ge=0, description="Step size of s in units of sigma_magnitude.")
    direction_rank: int = Field(16, ge=1, description="Rank of the direction B A.")
    rank: int = Field(1, ge=1, description="Rank of each member's perturbation of a factor.")
    factors: Literal["b", "ab"] = Field("b", description="Search B alone, or A and B.")
    ablation: Literal["none", "direction_only", "magnitude_only"] = Field(
        "none", description="What alone is searched."
    )
    weight_decay: float = Field(
        0.0, ge=0, description="Pull towards the base: B shrinks by lr (s by lr_magnitude) times this a step."
    )
    export_rank: int | None = Field(
        None, ge=1, description="Rank of the adapter that comes out; below direction_rank B A is truncated."
    )

    @model_validator(mode="after")
    def _decays_to_the_base(self) -> Self:
        if self.lr_magnitude * self.weight_decay >= 1:
            raise ValueError("lr_magnitude * weight_decay must stay below 1")
        return self

    def _first(self, origin: Origin) -> State:
        """See :meth:`Method.init`; a DoRA adapter of rank up to ``direction_rank`` can be the start.

        A LoRA cannot: DoRA computes the same only with ``m = ||W + B A||``, which the norms of W do not tell.

        Raises:
            ProtocolError: as there, or the norms are not given.
            AdapterError: as there.
            ModelError: a module is an embedding, or has an output channel without any direction.
        """
        template, start = origin.template, origin.start
        check_start(template, start, dora=True)
        lengths = {name: _checked_norms(name, spec, origin.norms) for name, spec in template.items()}
        a, b = first_factors(origin, self.direction_rank, dora=True)
        tensors: dict[str, Tensor] = {}
        for name in template:
            key_a, key_b = factor_names(name)
            given = None if start is None else start.modules.get(name)
            magnitude = lengths[name] if given is None or given.magnitude is None else given.magnitude
            tensors |= {key_a: a[name], key_b: b[name], _norms(name): lengths[name]}
            tensors[_change(name)] = (magnitude / lengths[name] - 1)[:, None]
        return self._anchored(origin, tensors)

    def adapter(self, state: State, rank: int | None = None) -> Adapter:
        """The mean as a DoRA: exact, or ``B A`` truncated where ``rank`` is below ``direction_rank``.

        ``truncation_error`` in the provenance is then the relative error of ``B A`` (Frobenius), before DoRA
        rescales it.
        """
        rank = rank or self.export_rank or self.direction_rank
        if rank >= self.direction_rank:
            return self._whole(state)
        plain = super().adapter(state, rank)
        modules = {name: replace(f, magnitude=_magnitude(state, name)) for name, f in plain.modules.items()}
        return replace(plain, modules=modules)

    def mean(self, state: State) -> Population:
        """One member at the mean, exactly."""
        return as_population(self._whole(state))

    def _whole(self, state: State) -> Adapter:
        modules = assemble(state.template, *split(state))
        modules = {name: replace(f, magnitude=_magnitude(state, name)) for name, f in modules.items()}
        return Adapter(modules, name=self.name, provenance=self._provenance(state))

    def _propose(self, state: State) -> Population:
        sigma = self._sigma(state) if self._turns else None
        sigma_a = None
        if sigma is not None and self.factors == "ab":
            sigma_a = {name: sigma * bound(spec) for name, spec in state.template.items()}
        return _AroundDecomposition(
            state,
            self._gaussian(state),
            self._sigma_magnitude(state) if self._rescales else None,
            noise=self._noise(state),
            sigma_b=sigma,
            sigma_a=sigma_a,
            layout=Layout(self.population, self.antithetic),
        )

    def _update(self, state: State, rewards: Tensor, progress: float) -> tuple[State, dict[str, float]]:
        following, metrics = super()._update(state, rewards, progress)
        squares = sum(following.tensor(_change(name)).square().sum().item() for name in state.template)
        return following, metrics | {
            "magnitude_norm": squares**0.5,
            "sigma_magnitude": self._sigma_magnitude(state),
            "lr_magnitude": self._lr_magnitude(state),
        }

    def _noise(self, state: State) -> Perturbation:
        return Perturbation(state.seed, state.step, self.rank)

    def _gaussian(self, state: State) -> FullRank:
        return FullRank(state.seed, state.step)

    def _searched(self, state: State) -> dict[str, Searched]:
        found: dict[str, Searched] = {}
        noise, gaussian = self._noise(state), self._gaussian(state)
        lr, lr_magnitude = self._lr(state), self._lr_magnitude(state)
        step, step_magnitude = lr * self._sigma(state), lr_magnitude * self._sigma_magnitude(state)
        for name, spec in state.template.items():
            key_a, key_b = factor_names(name)
            if self._turns and self.factors == "ab":
                found[key_a] = Searched(noise, step * bound(spec))
            if self._turns:
                found[key_b] = Searched(noise, step, 1 - lr * self.weight_decay)
            if self._rescales:
                kept = 1 - lr_magnitude * self.weight_decay
                found[_change(name)] = Searched(gaussian, step_magnitude, kept)
        return found

    @property
    def scales(self) -> tuple[str, str]:
        """Those of the direction; of the magnitude where that alone is searched."""
        return ("sigma", "lr") if self._turns else ("sigma_magnitude", "lr_magnitude")

    @property
    def _turns(self) -> bool:
        return self.ablation != "magnitude_only"

    @property
    def _rescales(self) -> bool:
        return self.ablation != "direction_only"

    def _lr_magnitude(self, state: State) -> float:
        return self.lr_magnitude * self._left(state)

    def _sigma_magnitude(self, state: State) -> float:
        return self.sigma_magnitude * (self._left(state) if self.decay_sigma else 1.0)

    @property
    def _walks_on_weights(self) -> bool:
        return False

    def _deltas(self, state: State) -> dict[str, Tensor]:
        a, b = split(state)
        return {name: b[name] @ a[name] for name in state.template}

    def _delta_norm(self, state: State) -> float:
        """Of ``B A`` and ``m - ||W||`` together; what they make of W needs W."""
        changes = (state.tensor(_change(name))[:, 0] * state.tensor(_norms(name)) for name in state.template)
        return hypot(product_norm(*split(state)), *(change.norm().item() for change in changes))


class _AroundDecomposition(AroundFactors):
    """Noise on the factors, and on the relative change of each magnitude.

    Args:
        state: where the means are.
        gaussian: the noise on s.
        sigma_magnitude: its standard deviation; None leaves s alone.
        around: what :class:`AroundFactors` takes beside the means.
    """

    def __init__(
        self, state: State, gaussian: FullRank, sigma_magnitude: float | None, **around: Any
    ) -> None:
        super().__init__(state.template, *split(state), **around)
        self._norms = {name: state.tensor(_norms(name)).cpu() for name in state.template}
        self._changes = {name: state.tensor(_change(name)) for name in state.template}
        self._gaussian, self._sigma_magnitude = gaussian, sigma_magnitude

    def block(self, members: Sequence[int]) -> dict[str, Stack]:
        """See :meth:`Population.block`; each member is a group of its own."""
        size = None
        if self._sigma_magnitude is not None:
            size = self.layout.signs(members) * self._sigma_magnitude
        stacks = {}
        for name, stack in super().block(members).items():
            change = self._moved(self._gaussian, _change(name), self._changes[name], members, size)
            stacks[name] = replace(stack, magnitude=self._norms[name] * (1 + change[..., 0]))
        return stacks


def _change(module: str) -> str:
    """The name of a module's s ``[d_out, 1]``, also that of its noise."""
    return f"{module}.magnitude_change"


def _norms(module: str) -> str:
    """The name of the norms of a module's base weight, ``[d_out]``."""
    return f"{module}.weight_norms"


def _magnitude(state: State, module: str) -> Tensor:
    return (state.tensor(_norms(module)) * (1 + state.tensor(_change(module))[:, 0])).cpu()


def _checked_norms(name: str, spec: ModuleSpec, norms: Mapping[str, Tensor] | None) -> Tensor:
    if spec.kind == "embedding":
        raise ModelError(
            "DoRA on an embedding is not supported", where=name, mend="leave embeddings out of the targets"
        )
    found = None if norms is None else norms.get(name)
    if found is None or found.shape != (spec.d_out,):
        raise ProtocolError(
            "the norms of the base's weight are missing", where=name, mend="pass Base.weight_norms(template)"
        )
    if not bool(((found > 0) & found.isfinite()).all()):
        raise ModelError(
            "an output channel of zero or infinite weights has no direction",
            where=name,
            mend="leave the module out of the targets",
        )
    return found.float()
