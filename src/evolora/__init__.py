"""evolora evolves LoRA adapters: reward-only adaptation, recombination, population studies.

The public names are loaded when first used, so that ``import evolora`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evolora.version import __version__

if TYPE_CHECKING:
    from evolora.adaptation import Adaptation, adapt
    from evolora.adapters import Adapter, Population
    from evolora.budget import Budget
    from evolora.config import AdaptConfig
    from evolora.engine import Base, Engine, Ledger, load_base
    from evolora.errors import EvoloraError
    from evolora.guard import Watch
    from evolora.problems import Evaluation, Problem, Reward, difference, evaluate, load_reward
    from evolora.progress import Progress
    from evolora.search import (
        CMA,
        GRPO,
        AdamW,
        Decomposed,
        Eggroll,
        MeZO,
        OpenAIES,
        RandomSearch,
        Replicator,
        make_method,
        methods,
    )
    from evolora.tasks import Example, Task, load_task, task_names

_HOMES = {
    "evolora.adaptation": ("Adaptation", "adapt"),
    "evolora.adapters": ("Adapter", "Population"),
    "evolora.budget": ("Budget",),
    "evolora.config": ("AdaptConfig",),
    "evolora.engine": ("Base", "Engine", "Ledger", "load_base"),
    "evolora.errors": ("EvoloraError",),
    "evolora.problems": ("Evaluation", "Problem", "Reward", "difference", "evaluate", "load_reward"),
    "evolora.progress": ("Progress",),
    "evolora.guard": ("Watch",),
    "evolora.search": (
        "CMA",
        "GRPO",
        "AdamW",
        "Decomposed",
        "Eggroll",
        "MeZO",
        "OpenAIES",
        "RandomSearch",
        "Replicator",
        "make_method",
        "methods",
    ),
    "evolora.tasks": ("Example", "Task", "load_task", "task_names"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "CMA",
    "GRPO",
    "AdamW",
    "AdaptConfig",
    "Adaptation",
    "Adapter",
    "Base",
    "Budget",
    "Decomposed",
    "Eggroll",
    "Engine",
    "Evaluation",
    "EvoloraError",
    "Example",
    "Ledger",
    "MeZO",
    "OpenAIES",
    "Population",
    "Problem",
    "Progress",
    "RandomSearch",
    "Replicator",
    "Reward",
    "Task",
    "Watch",
    "__version__",
    "adapt",
    "difference",
    "evaluate",
    "load_base",
    "load_reward",
    "load_task",
    "make_method",
    "methods",
    "task_names",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'evolora' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
