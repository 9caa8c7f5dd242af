"""All methods by name. The command, the docs table and the law suite read them from here."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from evolora.search.gradient_method import GradientMethod, PolicyMethod
from evolora.search.method import Method
from evolora.search.options import unknown

AnyMethod = Method | GradientMethod | PolicyMethod
_HOMES = {
    "eggroll": ("evolora.search.eggroll", "Eggroll"),
    "decomposed": ("evolora.search.decomposed", "Decomposed"),
    "openai_es": ("evolora.search.openai_es", "OpenAIES"),
    "replicator": ("evolora.search.replicator", "Replicator"),
    "mezo": ("evolora.search.mezo", "MeZO"),
    "random_search": ("evolora.search.random_search", "RandomSearch"),
    "cma": ("evolora.search.cma", "CMA"),
    "adamw": ("evolora.search.adamw", "AdamW"),
    "grpo": ("evolora.search.grpo", "GRPO"),
}


def methods() -> dict[str, type[AnyMethod]]:
    """Name to class; each has ``name``, ``summary``, ``source`` and ``table()`` of its options."""
    return {name: getattr(import_module(home), attribute) for name, (home, attribute) in _HOMES.items()}


def make_method(name: str, **options: Any) -> AnyMethod:
    """A method by its name, with the given options and the defaults for the rest.

    Raises:
        ConfigError: an unknown method or option (the nearest known one is suggested), or a value out of
            range.
    """
    if name not in _HOMES:
        raise unknown("method", name, _HOMES)
    home, attribute = _HOMES[name]
    return getattr(import_module(home), attribute)(**options)
