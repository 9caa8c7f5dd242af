"""Diagnostics: what a run did to the weights, to the base's behaviour, and to what it could do before."""

from evolora.diagnostics.checkup import Finished, diagnose
from evolora.diagnostics.decomposition import Change, Decomposition, decompose
from evolora.diagnostics.divergence import Divergence, continuations, divergences
from evolora.diagnostics.gradient import Alignment, alignment, expected_cosine
from evolora.diagnostics.path import Path, straight_path
from evolora.diagnostics.population import distinct_lineages, diversity, effective_sample_size
from evolora.diagnostics.retention import Retention, check_prior, prior_task, retained
from evolora.diagnostics.sparsity import Sparsities, Sparsity, sparsities
from evolora.diagnostics.spectra import Spectra, Spectrum, spectra_of
from evolora.diagnostics.walk import Walk, against_walk, walk_length

__all__ = [
    "Alignment",
    "Change",
    "Decomposition",
    "Divergence",
    "Finished",
    "Path",
    "Retention",
    "Sparsities",
    "Sparsity",
    "Spectra",
    "Spectrum",
    "Walk",
    "against_walk",
    "alignment",
    "check_prior",
    "continuations",
    "decompose",
    "diagnose",
    "distinct_lineages",
    "divergences",
    "diversity",
    "effective_sample_size",
    "expected_cosine",
    "prior_task",
    "retained",
    "sparsities",
    "spectra_of",
    "straight_path",
    "walk_length",
]
