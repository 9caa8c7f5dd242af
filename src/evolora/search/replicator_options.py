"""The options of replicator search: the rule's constants, and its variants, each off by default."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from evolora.search.options import Options
from evolora.search.replicator_dynamics import Resampling


class ReplicatorOptions(Options):
    """See ``replicator``."""

    population: int = Field(8, ge=2, description="N, candidates; each costs one evaluation a step.")
    kappa: float = Field(50.0, ge=0, description="Selection: growth of log w per unit of reward and time.")
    dt: float = Field(1.0, gt=0, description="Time that a step takes.")
    lambda_m: float = Field(2.0, gt=0, description="Rate at which memories forget; large: no memory.")
    diffusion: float = Field(1e-4, ge=0, description="D: an entry of B moves by sqrt(2 D dt) a step.")
    memory_noise: float = Field(0.0, ge=0, description="D_M, the diffusion of memories.")
    spread: float = Field(
        0.02, ge=0, description="Standard deviation of the first differences, in D's units."
    )
    rank: int = Field(8, ge=1, description="Rank of each candidate.")
    factors: Literal["b", "ab"] = Field("b", description="Candidates differ in B alone, or in A and B.")
    standardise: bool = Field(
        False, description="Rewards to mean 0 and variance 1 each step; kappa then has no units."
    )
    anneal: bool = Field(False, description="D falls to 0 as the budget is spent.")
    mutation: Literal["isotropic", "covariance"] = Field(
        "isotropic", description="Shape of the mutations: round, or after the weighted population."
    )
    covariance_share: float = Field(
        0.5, gt=0, le=1, description="With mutation covariance: the share of the variance that follows it."
    )
    antithetic: bool = Field(False, description="Mutations come in pairs with opposite signs.")
    recombine: Literal["never", "resampling", "step"] = Field(
        "never",
        description="Whether all candidates are replaced by their weighted mean before they mutate: never, "
        "instead of resampling, or at each step.",
    )
    mutation_space: Literal["factors", "delta"] = Field(
        "factors", description="What is mutated: A and B, or their product, folded back to the rank."
    )
    resampling: Resampling = Field("multinomial", description="How offspring are drawn.")
    resample_first: bool = Field(False, description="Resample before the mutation, so that no twins remain.")
    common_minibatches: bool = Field(
        True,
        description="All candidates are judged by all prompts of a step; else by every N-th, each its own.",
    )
    export: Literal["best", "mean"] = Field(
        "best", description="What comes out: the candidate of the largest weight, or the weighted mean delta."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.antithetic and self.population % 2:
            raise ValueError(f"a population of {self.population} has no whole antithetic pairs: make it even")
        if self.mutation_space == "delta" and self.factors == "b":
            raise ValueError("mutation_space delta moves A too: set factors to ab")
        if self.mutation_space == "delta" and self.mutation == "covariance":
            raise ValueError("mutation covariance is one of factors, not of mutation_space delta")
        return self
