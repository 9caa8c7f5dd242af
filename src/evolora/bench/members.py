"""The same members for all contestants: as noise, as a list of adapters; and the rows that they are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evolora.adapters import Adapter, Factors, ModuleSpec, Population
from evolora.engine.layers import attached
from evolora.search import Eggroll
from evolora.search.perturbation import Perturbation
from evolora.search.perturbed import AroundDelta, Layout

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.engine import Base, Engine

SIGMA = 0.02
TEXTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "Once upon a time there was",
    "The opposite of hot is",
    "In the morning she went to the",
    "Two plus two makes",
    "My favourite colour is",
    "The largest animal on land is the",
)


def noise(specs: dict[str, ModuleSpec], members: int, rank: int) -> Population:
    """Antithetic low-rank noise around the frozen base, made anew at every use: EGGROLL without a mean."""
    return AroundDelta(specs, {}, Perturbation(0, 0, rank), SIGMA, Layout(members, members % 2 == 0))


class Search:
    """An EGGROLL search on the weights that is under way: noise around a mean that has left the base.

    Args:
        specs: the adapted modules.
        members: N.
        rank: of the noise.
    """

    def __init__(self, specs: dict[str, ModuleSpec], members: int, rank: int) -> None:
        import torch

        pairs = members % 2 == 0
        self._method = Eggroll(
            sigma=SIGMA,
            rank=rank,
            population=max(2, members),
            antithetic=pairs,
            shaping="pair_rms" if pairs else "centred",
        )
        state = self._method.init(specs, 0)
        self._method.ask(state)
        rewards = torch.linspace(0, 1, max(2, members))[:, None]
        self._state, _ = self._method.tell(state, rewards)

    def ask(self) -> Population:
        """The population of one and the same step; what follows from its mean is prepared at every call."""
        return self._method.ask(self._state)

    def tell(self, rewards: Tensor) -> None:
        """Makes the update; the search stays where it is, so that every call costs the same."""
        self._method.tell(self._state, rewards)


def adapters(population: Population) -> list[Adapter]:
    """The members of a population as adapters that compute the same."""
    count = len(population)
    made: list[dict[str, Factors]] = [{} for _ in range(count)]
    for name, stack in population.block(range(count)).items():
        assert stack.a is not None
        for i in range(count):
            group = i * len(stack.a) // count
            size = 1.0 if stack.coefficient is None else float(stack.coefficient[i])
            made[i][name] = Factors(stack.a[group], stack.b[group] * size, kind=population.specs[name].kind)
    return [Adapter(modules, name=f"m{i}") for i, modules in enumerate(made)]


def token_rows(base: Base, rows: int, tokens: int) -> Tensor:
    """``[rows, tokens]`` random token ids, always the same."""
    import torch

    generator = torch.Generator().manual_seed(0)
    vocabulary = min(len(base.tokenizer), base.structure.specs[base.structure.head].d_out)
    return torch.randint(0, vocabulary, (rows, tokens), generator=generator).to(base.device)


def texts(count: int, sentences: int = 1) -> list[str]:
    """Different prompts, the last sentence of each to be completed."""
    made = []
    for i in range(count):
        chosen = [TEXTS[(i + k) % len(TEXTS)] for k in range(sentences)]
        made.append(". ".join(chosen if i < len(TEXTS) else [str(i), *chosen]))
    return made


def last_logits(engine: Engine, members: Population | list[Adapter], ids: Tensor) -> Tensor:
    """``[N, P, V]`` logits at the end of each row; bound, cut into blocks and run as in scoring."""
    import torch

    bound = engine.bind(members)
    cut = engine.plan(bound, len(ids), ids.shape[1])
    parts = []
    with torch.inference_mode():
        for block in cut.blocks(bound.count):
            with attached(engine.base, engine.terms(bound, block), bound.shared):
                found = []
                for rows in ids.split(cut.prompts):
                    ends = torch.arange(1, len(rows) + 1, device=ids.device) * rows.shape[1] - 1
                    logits = engine.forward(bound, rows, len(block), positions=ends)
                    found.append(logits.view(len(block), len(rows), -1))
                parts.append(torch.cat(found, 1))
    return torch.cat(parts)
