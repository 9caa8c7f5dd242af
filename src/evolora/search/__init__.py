"""Search: methods that adapt a base by rewards alone, and gradient baselines; one algorithm a file."""

from __future__ import annotations

from evolora.search.adamw import AdamW
from evolora.search.eggroll import Eggroll
from evolora.search.grpo import GRPO
from evolora.search.method import AnyMethod, GradientMethod, Method, PolicyMethod
from evolora.search.options import Option, Options
from evolora.search.registry import make_method, methods
from evolora.search.shaping import Fitness, shape
from evolora.search.state import State, from_checkpoint, to_checkpoint

__all__ = [
    "GRPO",
    "AdamW",
    "AnyMethod",
    "Eggroll",
    "Fitness",
    "GradientMethod",
    "Method",
    "Option",
    "Options",
    "PolicyMethod",
    "State",
    "from_checkpoint",
    "make_method",
    "methods",
    "shape",
    "to_checkpoint",
]
