"""An adapter that is half good at a task: where a search from a 0/1 reward can begin.

The first steps of a fine-tuning by gradients that was meant to last 48, up to the first of which a quarter of
the validation prompts is right. It sees the first 256 training prompts; a search from it gets the others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from evolora.search import AdamW

if TYPE_CHECKING:
    from evolora.adapters import Adapter
    from evolora.problems import Problem
    from evolora.tasks import Task

LESSONS, ENOUGH, STEPS = 256, 0.25, 48


def divided(task: Task) -> tuple[Task, Task]:
    """The task twice: with the training prompts that gradients may see, and with the others."""
    return replace(task, train=task.train[:LESSONS]), replace(task, train=task.train[LESSONS:])


def half_trained(problem: Problem, seed: int, steps: int = STEPS) -> Adapter:
    """The adapter; ``problem`` has the first of the two tasks."""
    method = AdamW(rank=8)
    state = method.init(problem.template, seed)
    for step in range(steps):
        pairs = [(str(example.prompt), example.answer) for example in problem.batch(step)]
        state, _ = method.step(state, problem.engine, pairs, (step + 1) / steps, problem.task.stop)
        right = problem.judge(method.adapter(state), problem.split("validation")).values
        if right.mean() >= ENOUGH:
            break
    return method.adapter(state)
