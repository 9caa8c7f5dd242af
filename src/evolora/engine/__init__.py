"""The engine: loading a base, population layers, log-likelihood, generation, embedding, the ledger."""

from evolora.engine.base import Base
from evolora.engine.engine import Engine, Scores
from evolora.engine.ledger import Ledger
from evolora.engine.loading import load_base

__all__ = ["Base", "Engine", "Ledger", "Scores", "load_base"]
