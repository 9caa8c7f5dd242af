"""Specialists, and what is asked of their merges."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from evolora.engine import Engine, Ledger
from evolora.problems import Problem, load_reward
from evolora.search import AdamW
from evolora.search.coordinates import AtPoints, Coordinates, merge_weights
from evolora.studies.study import Settings
from evolora.studies.trial import base_of
from evolora.tasks import Task, load_task

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.adapters import Adapter, Population

TASKS = ("strings/upper:3", "lists/reverse:3", "strings/initials:3")


class Bench:
    """One seed's specialists and prompts; judges merges."""

    def __init__(self, seed: int, settings: Settings) -> None:
        self.tasks = [_task(spec, seed, settings["validation"], settings["test"]) for spec in TASKS]
        base = base_of(settings["model"])
        self.engine = Engine(base)
        made = (settings["model"], settings["layers"], settings["steps"], settings["batch"], seed)
        self.parents = [specialist(task, *made) for task in self.tasks]
        self.map: Coordinates = merge_weights(self.parents)
        self.exact = load_reward("exact")

    def at(self, points: Tensor) -> Population:
        """The merges of some weights ``[N, 3]``."""
        return AtPoints(self.map, points.double(), [str(number) for number in range(len(points))])

    def judged(self, members: Population, part: str) -> Tensor:
        """Shares of right answers of merges to ``search``, ``choice`` or ``test`` prompts, ``[N, tasks]``."""
        import torch

        shares = []
        for task in self.tasks:
            half = len(task.validation) // 2
            parts = {"search": task.validation[:half], "choice": task.validation[half:], "test": task.test}
            problem = Problem(self.engine, task, self.exact, template=self.map.specs)
            shares.append(problem.judge(members, parts[part]).values.mean(1))
        return torch.stack(shares, 1)

    def report(self, point: Tensor) -> dict[str, Any]:
        """On the test prompts; outside the ledger."""
        import torch

        outer, self.engine.ledger = self.engine.ledger, Ledger()
        count = len(self.parents)
        points = torch.stack([point, torch.full_like(point, 1 / count), *torch.eye(count, dtype=point.dtype)])
        shares = self.judged(self.at(points), "test")
        self.engine.ledger = outer
        mean = shares.mean(1).tolist()
        return {
            "exact": mean[0],
            "worst": shares[0].min().item(),
            "by_task": shares[0].tolist(),
            "mass": point.sum().item(),
            "soup": mean[1],
            "best_parent": max(mean[2:]),
            "parents": shares[2:].tolist(),
        }


def _task(spec: str, seed: int, validation: int, test: int) -> Task:
    return load_task(spec, seed=seed, train=400, validation=validation, test=test)


@lru_cache(maxsize=12)
def specialist(task: Task, model: str, layers: str, steps: int, batch: int, seed: int) -> Adapter:
    """A LoRA of rank 8 fine-tuned on one task; made once a process for all arms of a seed."""
    base = base_of(model)
    template = base.modules("all-linear", layers)
    problem = Problem(Engine(base), task, load_reward("exact"), batch, seed, template=template)
    method = AdamW(rank=8, lr=3e-3)
    state = method.init(template, seed)
    for step in range(steps):
        pairs = [(str(example.prompt), example.answer) for example in problem.batch(step)]
        state, _ = method.step(state, problem.engine, pairs, (step + 1) / steps, task.stop)
    return method.adapter(state)
