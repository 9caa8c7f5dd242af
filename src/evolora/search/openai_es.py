"""OpenAI-style evolution strategies: dense Gaussian noise on every weight that is adapted.

    M <- M + alpha / N sum_i z_i E_i,    E_i with independent unit normal entries, z_i the z-scored reward

Sources: Salimans et al., arXiv 1703.03864; the defaults are those of Evolution Strategies at Scale, arXiv
2509.24372: 30 members without antithetic pairs, sigma 0.001, alpha 0.0005, constant, z-scored rewards. Here
``lr`` is in units of sigma whatever N is, as in all our strategies: ``alpha = lr sigma sqrt(N)``, and the
default ``lr`` is ``0.5 / sqrt(30)``. Dense noise costs a product as large as the base's own for every member,
where EGGROLL's costs next to nothing.
"""

from __future__ import annotations

from math import sqrt
from typing import ClassVar, Literal

from pydantic import Field

from evolora.search.perturbation import FullRank
from evolora.search.shaping import Shaping
from evolora.search.state import State
from evolora.search.strategy import Strategy


class OpenAIES(Strategy):
    """Evolution strategies with full-rank noise on the weights."""

    name: ClassVar[str] = "openai_es"
    summary: ClassVar[str] = "evolution strategies with full-rank noise on the weights"
    source: ClassVar[str] = (
        "Salimans et al., arXiv 1703.03864; Evolution Strategies at Scale, arXiv 2509.24372"
    )

    sigma: float = Field(0.001, ge=0, description="Standard deviation of the perturbation of each weight.")
    lr: float = Field(
        round(0.5 / sqrt(30), 4), ge=0, description="Step size in units of sigma; alpha = lr sigma sqrt(N)."
    )
    population: int = Field(30, ge=2, description="Members a step; even for antithetic pairs.")
    antithetic: bool = Field(False, description="Members come in pairs with opposite perturbations.")
    shaping: Shaping = Field("zscore", description="How rewards become fitness.")
    decay: Literal["linear", "constant"] = Field(
        "constant", description="How lr falls as the budget is spent."
    )

    def _noise(self, state: State) -> FullRank:
        return FullRank(state.seed, state.step)
