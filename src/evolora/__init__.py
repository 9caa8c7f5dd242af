"""evolora evolves LoRA adapters: reward-only adaptation, recombination, population studies."""

from evolora.version import __version__

__all__ = ["__version__"]
