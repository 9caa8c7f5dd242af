"""The straight line between two adapters: how alike they are, and what the reward does on the way.

    D(t) = (1 - t) D_1 + t D_2,    exactly, by the concatenated factors [(1 - t) B_1, t B_2] [A_1; A_2]

    barrier = max over 0 < t < 1 of (1 - t) R(0) + t R(1) - R(t), at least 0    (R the mean reward)

Two methods may reach one accuracy by deltas that point elsewhere (arXiv 2604.01499): the cosine says whether
they do, the barrier whether they lie in one basin (linear mode connectivity, arXiv 1912.05671). With the base
as the first end the line shows whether the whole step was worth taking, and, beyond 1, whether it was too
short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from evolora.adapters import Adapter, Population, Stack
from evolora.adapters.geometry import cosine, distance
from evolora.errors import AdapterError, ProtocolError

if TYPE_CHECKING:
    from evolora.problems import Problem
    from evolora.tasks import Example

POSITIONS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)


@dataclass(frozen=True)
class Path:
    """What was found on the line.

    Attributes:
        cosine: of the two deltas, -1 to 1; nan where one is zero (the base).
        distance: Frobenius, between them.
        positions: t of each point; 0 is the first adapter, 1 the second.
        rewards: mean reward at each, higher is better; nan where nothing could be judged.
        barrier: in the reward's unit; 0 where the reward never falls below the straight line.
    """

    cosine: float
    distance: float
    positions: tuple[float, ...]
    rewards: tuple[float, ...]
    barrier: float


class Line(Population):
    """T points of a line as one population; made block by block.

    Args:
        first: at t = 0; None is the base.
        second: at t = 1.
        positions: t of each member.

    Raises:
        AdapterError: shapes that disagree, or DoRA, whose weights do not move along a line of deltas.
    """

    def __init__(self, first: Adapter | None, second: Adapter, positions: Sequence[float]) -> None:
        self.ends = (first or Adapter({}, name="base"), second)
        self.positions = tuple(positions)
        self.ids = tuple(f"{t:g}" for t in self.positions)
        self.specs, self.ranks = {}, {}
        for end in self.ends:
            for name, factors in end.modules.items():
                if factors.magnitude is not None:
                    raise AdapterError(
                        "a DoRA adapter does not lie on a straight line of deltas",
                        where=f"{end.name}, {name}",
                        mend="give plain LoRA adapters",
                    )
                if self.specs.setdefault(name, factors.spec) != factors.spec:
                    raise AdapterError(f"{factors.spec} where the other has {self.specs[name]}", where=name)
                self.ranks[name] = self.ranks.get(name, 0) + factors.rank

    def block(self, members: Sequence[int]) -> dict[str, Stack]:
        """See :meth:`Population.block`; each member is a group of its own."""
        import torch

        shares = [(1 - self.positions[i], self.positions[i]) for i in members]
        stacks = {}
        for name, spec in self.specs.items():
            parts = [(end.modules[name], side) for side, end in enumerate(self.ends) if name in end.modules]
            a = torch.cat([factors.a for factors, _ in parts]).expand(len(members), -1, -1)
            b = torch.stack(
                [torch.cat([f.b * (f.scale * share[side]) for f, side in parts], 1) for share in shares]
            )
            stacks[name] = Stack(a, b, kind=spec.kind)
        return stacks


def straight_path(
    problem: Problem,
    first: Adapter | None,
    second: Adapter,
    examples: Sequence[Example],
    positions: Sequence[float] = POSITIONS,
) -> Path:
    """Judges points of the line on the same prompts, as one population.

    Args:
        problem: its engine and reward are used.
        first: one end; None is the base.
        second: the other.
        examples: the prompts; not the test split, if anything is to be chosen by it.
        positions: t of the points; 0 and 1 must be among them.

    Raises:
        ProtocolError: 0 or 1 is missing.
        AdapterError: see ``Line``; or an end does not fit the base.
    """
    if not {0.0, 1.0} <= set(positions):
        raise ProtocolError("the ends are missing", where="positions", mend="put 0 and 1 among them")
    values = problem.judge(Line(first, second, positions), examples).values.double()
    rewards = values.nanmean(1).tolist()
    here, there = rewards[list(positions).index(0.0)], rewards[list(positions).index(1.0)]
    falls = [(1 - t) * here + t * there - r for t, r in zip(positions, rewards, strict=True) if 0 < t < 1]
    start = first or Adapter({}, name="base")
    return Path(
        cosine(start, second),
        distance(start, second),
        tuple(positions),
        tuple(rewards),
        max([0.0, *falls]),
    )
