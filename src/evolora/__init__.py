"""evolora evolves LoRA adapters: reward-only adaptation, recombination, population studies.

The public names are loaded when first used, so that ``import evolora`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from evolora.version import __version__

if TYPE_CHECKING:
    from evolora.adapters import Adapter, Population
    from evolora.config import AdaptConfig
    from evolora.errors import EvoloraError
    from evolora.progress import Progress

_HOMES = {
    "AdaptConfig": "evolora.config",
    "Adapter": "evolora.adapters",
    "EvoloraError": "evolora.errors",
    "Population": "evolora.adapters",
    "Progress": "evolora.progress",
}

__all__ = ["AdaptConfig", "Adapter", "EvoloraError", "Population", "Progress", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'evolora' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
