"""Runs: the folder, its journal and checkpoints, the record of what a run was made with."""

from evolora.runs.checkpoint import Checkpoint
from evolora.runs.folder import RunFolder
from evolora.runs.interrupt import Interrupt
from evolora.runs.journal import Journal

__all__ = ["Checkpoint", "Interrupt", "Journal", "RunFolder"]
