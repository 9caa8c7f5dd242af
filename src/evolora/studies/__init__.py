"""Experiments with a verdict: claims first, paired seeds, equal budgets, honest statistics."""

from evolora.studies.registry import load_study, studies
from evolora.studies.runner import run_study
from evolora.studies.study import Arm, Cells, Claim, Finding, Measure, Preset, Study

__all__ = [
    "Arm",
    "Cells",
    "Claim",
    "Finding",
    "Measure",
    "Preset",
    "Study",
    "load_study",
    "run_study",
    "studies",
]
