"""Replicator-mutation search: a population of LoRA vectors that compete, remember and diffuse.

N candidates z_i with normalised weights w_i and memories m_i. Rewards G_i of the current z are told; then, in
this order,

    1. memory      m_i <- (1 - alpha) m_i + alpha G_i  (+ sqrt(2 D_M dt) noise),
                   alpha = 1 - exp(-lambda_M dt)
    2. selection   log w_i <- log w_i + kappa dt (m_i - sum_j w_j m_j), normalised
    3. mutation    z_i <- z_i + sqrt(2 D dt) xi_i
    4. resampling  if 1 / sum_i w_i^2 < N / 3: N offspring in proportion to w, z and memory copied, w = 1 / N

and the z that come out are judged next. All start at one LoRA, w_i = 1 / N, m_i = 0; before the first rewards
they get small Gaussian differences (``spread``). After step 4 twins are judged; ``resample_first`` puts it
before 3.

``tell`` does 1 and 2, ``ask`` 3 and 4: the state holds candidates as they were judged, with the weights that
their rewards gave them, and so does what is exported. Where no candidate was rewarded the state stays.

Entries of B have mutations of variance ``2 D dt``; those of A, whose random size is 1 / sqrt(d_in), of a
d_in-th of it (``replicator_mutation``). With weights 1 / N the mean moves in one step by ``kappa dt alpha``
times the covariance of z and G, which is an evolution strategy's gradient estimate times the variance of its
noise: with ``recombine="step"`` the method is one, with softmax weights.

Source: Theory of collective learning in populations of adaptive agents, arXiv 2607.02171. The variants are
this library's, each off by default.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from evolora.adapters import Adapter, Factors, Population, as_population, geometry
from evolora.adapters.noise import normal, uniform
from evolora.errors import ProtocolError
from evolora.search.candidates import Candidates, diversity, length
from evolora.search.method import Method
from evolora.search.origin import Origin, first_factors
from evolora.search.replicator_dynamics import effective_size, offspring, remember, select, too_few
from evolora.search.replicator_mutation import Deviates, covariance, delta, isotropic, recombined
from evolora.search.replicator_options import ReplicatorOptions
from evolora.search.replicator_state import NEVER, Standing, pack, unpack
from evolora.search.shaping import mean_rewards, shape
from evolora.search.state import State
from evolora.search.truncation import compress

if TYPE_CHECKING:
    from torch import Tensor


class Replicator(ReplicatorOptions, Method):
    """Replicator-mutation search over LoRA vectors; see the module's text."""

    name: ClassVar[str] = "replicator"
    summary: ClassVar[str] = "a population of LoRAs under selection by remembered rewards, and mutation"
    source: ClassVar[str] = "Collective learning in populations of adaptive agents, arXiv 2607.02171"
    step_options: ClassVar[tuple[str, ...]] = ("diffusion",)
    spread_advice: ClassVar[str] = "a larger spread or diffusion"

    @property
    def least_batch(self) -> int:
        """A prompt for each candidate where each has its own."""
        return 1 if self.common_minibatches else self.population

    def _first(self, origin: Origin) -> State:
        """See :meth:`Method.init`; a LoRA of rank up to ``rank`` can be the start."""
        a, b = first_factors(origin, self.rank)
        count = self.population
        if self.factors == "ab":
            a = {name: value.expand(count, -1, -1) for name, value in a.items()}
        b = {name: value.expand(count, -1, -1) for name, value in b.items()}
        tensors = pack(Candidates(origin.template, a, b, [""] * count), Standing.first(count))
        return origin.state(tensors, {"judged": NEVER})

    def members(self, state: State) -> int:
        """How many candidates there are: the option ``population``."""
        return self.population

    def mean(self, state: State) -> Population:
        """One member: what is exported, exactly."""
        return as_population(Adapter(self._exported(state), name="mean"))

    def adapter(self, state: State, rank: int | None = None) -> Adapter:
        """The best candidate, or the weighted mean of all, truncated where its rank is above ``rank``.

        Only a mean of candidates with their own A is above the option ``rank``, which is what it is truncated
        to by default.
        """
        modules = self._exported(state)
        lost: dict[str, Any] = {}
        rank = rank or self.rank
        if max(factors.rank for factors in modules.values()) > rank:
            deltas = {name: factors.delta() for name, factors in modules.items()}
            modules, lost = compress(deltas, state.template, rank)
        return Adapter(modules, name=self.name, provenance=self._provenance(state) | lost)

    def candidates(self, state: State) -> list[Adapter]:
        """All candidates as they were last judged.

        ``provenance["member"]`` has each one's ``id`` (``STEP.PLACE``), ``weight``, ``memory``, ``ancestor``
        (the place at the start that its line began at) and ``lineage`` (its forebears' ids at each
        resampling, the latest first).
        """
        crowd, standing = unpack(state)
        found = []
        for place, name in enumerate(crowd.ids):
            member = {"member": {"id": name} | standing.record(place)}
            found.append(Adapter(crowd.factors(place), name, provenance=self._provenance(state) | member))
        return found

    def members_to_export(self, state: State) -> dict[str, Adapter]:
        """``best``, ``mean``, and all candidates as ``00``, ``01`` and so on."""
        everyone = self.candidates(state)
        best = everyone[_best(unpack(state)[1])]
        mean = self.model_copy(update={"export": "mean"}).adapter(state)
        return {"best": best, "mean": mean} | {f"{i:02d}": one for i, one in enumerate(everyone)}

    def _propose(self, state: State) -> Population:
        return self._next(state)[0]

    def _update(self, state: State, rewards: Tensor, progress: float) -> tuple[State, dict[str, float]]:
        crowd, standing, metrics = self._next(state)
        judged = self._judged(rewards, state.step)
        part = ~judged.isnan()
        if part.any():
            memory = remember(standing.memory, judged, standing.log_weights, self.lambda_m * self.dt)
            memory = memory + self._memory_noise(state)
            log_weights = select(standing.log_weights, memory, self.kappa * self.dt, part)
            chosen = replace(standing, log_weights=log_weights, memory=memory)
            following = state.after(pack(crowd, chosen), {"judged": state.step}, progress)
        else:
            chosen, following = standing, state.after(state.tensors, state.numbers, progress)
        weights, gram = chosen.log_weights.exp(), crowd.gram()
        return following, metrics | {
            "ess": effective_size(weights),
            "best_weight": weights.max().item(),
            "diversity": diversity(gram),
            "ancestors": float(len(chosen.ancestors.unique())),
            "update_norm": length(gram, weights - standing.log_weights.exp()),
            "delta_norm": geometry.norm(Adapter(self._exported(following))),
            "no_spread": float(len(judged[part].unique()) < 2),
        }

    def _judged(self, rewards: Tensor, step: int) -> Tensor:
        """G: one reward a candidate, ``[N]`` float64, nan without any."""
        import torch

        if not self.common_minibatches:
            members, prompts = rewards.shape
            if prompts < members:
                raise ProtocolError(
                    f"{prompts} prompts for {members} candidates with minibatches of their own",
                    where=self.name,
                    mend="raise batch, or set common_minibatches",
                )
            own = (torch.arange(members)[:, None] + step - torch.arange(prompts)) % members == 0
            rewards = torch.where(own, rewards, torch.nan).nanmean(1, keepdim=True)
        if not self.standardise:
            return mean_rewards(rewards)
        fitness = shape(rewards, "zscore")
        return torch.where(fitness.active, fitness.values.double(), torch.nan)

    def _next(self, state: State) -> tuple[Candidates, Standing, dict[str, float]]:
        """The candidates to judge, how they stand, and what the journal wants to know of their making."""
        import torch

        old, standing = unpack(state)
        ids = [f"{state.step}.{place}" for place in range(len(old))]
        judged = int(state.numbers["judged"])
        if judged == NEVER:
            crowd = isotropic(old, self.spread, self._noise(state, "spread"))
            return Candidates(old.specs, crowd.a, crowd.b, ids), standing, {"resampled": 0.0}
        crowd, metrics = old, {"resampled": 0.0}
        parents: list[tuple[str, ...]] = [(name,) for name in old.ids]
        weights, drawn = standing.log_weights.exp(), None
        due = too_few(weights)
        if self.recombine == "step" or (self.recombine == "resampling" and due):
            crowd, metrics["fold_error"] = recombined(old, weights)
            standing, parents = standing.merged(judged), [tuple(old.ids)] * len(old)
        elif due:
            draws = uniform(len(old), seed=state.seed, step=state.step, purpose="replicator/resampling")
            drawn = offspring(weights, torch.from_numpy(draws), self.resampling)
            parents = [(old.ids[place],) for place in drawn.tolist()]
        if drawn is not None and self.resample_first:
            crowd, standing = crowd.taken(drawn), standing.taken(drawn, judged)
        crowd, lost = self._mutated(state, crowd, standing.log_weights.exp())
        if drawn is not None and not self.resample_first:
            crowd, standing = crowd.taken(drawn), standing.taken(drawn, judged)
        metrics |= {"resampled": float(due and self.recombine != "step")} | lost
        return Candidates(old.specs, crowd.a, crowd.b, ids, parents), standing, metrics

    def _mutated(
        self, state: State, crowd: Candidates, weights: Tensor
    ) -> tuple[Candidates, dict[str, float]]:
        left = 1 - state.progress if self.anneal else 1.0
        size = sqrt(2 * self.diffusion * left * self.dt)
        noise = self._noise(state, "mutation")
        if size == 0:
            return crowd, {}
        if self.mutation_space == "delta":
            crowd, lost = delta(crowd, size, noise)
            return crowd, {"noise_lost": lost}
        if self.mutation == "covariance":
            return covariance(crowd, size, noise, weights, self.covariance_share), {}
        return isotropic(crowd, size, noise), {}

    def _memory_noise(self, state: State) -> Tensor | float:
        import torch

        if self.memory_noise == 0:
            return 0.0
        out = np.empty(self.population, np.float32)
        normal(out, seed=state.seed, step=state.step, purpose="replicator/memory")
        return torch.from_numpy(out).double() * sqrt(2 * self.memory_noise * self.dt)

    def _noise(self, state: State, purpose: str) -> Deviates:
        return Deviates(state.seed, state.step, f"replicator/{purpose}", self.population, self.antithetic)

    def _exported(self, state: State) -> dict[str, Factors]:
        crowd, standing = unpack(state)
        if self.export == "mean":
            return crowd.mean(standing.log_weights.exp())
        return crowd.factors(_best(standing))


def _best(standing: Standing) -> int:
    """The place of the largest weight; of those that weigh alike, of the best memory."""
    worth = list(zip(standing.log_weights.tolist(), standing.memory.tolist(), strict=True))
    return max(range(len(worth)), key=worth.__getitem__)
