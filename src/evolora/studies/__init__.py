"""Experiments with a verdict: claims first, paired seeds, equal budgets, honest statistics."""

from evolora.studies.runner import run_study
from evolora.studies.study import Arm, Cells, Claim, Finding, Preset, Study

__all__ = ["Arm", "Cells", "Claim", "Finding", "Preset", "Study", "run_study"]
