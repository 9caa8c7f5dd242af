"""Search: methods that adapt a base by rewards alone, and gradient baselines; one algorithm a file."""

from __future__ import annotations

from evolora.search.adamw import AdamW
from evolora.search.cma import CMA
from evolora.search.decomposed import Decomposed
from evolora.search.eggroll import Eggroll
from evolora.search.gradient_method import GradientMethod, PolicyMethod
from evolora.search.grpo import GRPO
from evolora.search.method import Method
from evolora.search.mezo import MeZO
from evolora.search.openai_es import OpenAIES
from evolora.search.options import Option, Options
from evolora.search.random_search import RandomSearch
from evolora.search.registry import AnyMethod, make_method, methods
from evolora.search.replicator import Replicator
from evolora.search.shaping import Fitness, shape
from evolora.search.state import State, from_checkpoint, to_checkpoint
from evolora.search.strategy import Strategy

__all__ = [
    "CMA",
    "GRPO",
    "AdamW",
    "AnyMethod",
    "Decomposed",
    "Eggroll",
    "Fitness",
    "GradientMethod",
    "MeZO",
    "Method",
    "OpenAIES",
    "Option",
    "Options",
    "PolicyMethod",
    "RandomSearch",
    "Replicator",
    "State",
    "Strategy",
    "from_checkpoint",
    "make_method",
    "methods",
    "shape",
    "to_checkpoint",
]
