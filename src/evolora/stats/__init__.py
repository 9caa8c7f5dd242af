"""Statistics that verdicts stand on: thin over scipy, careful with degenerate data."""

from evolora.stats.association import qap, spearman
from evolora.stats.intervals import Estimate, Interval, mean_interval
from evolora.stats.multiple import holm
from evolora.stats.paired import detectable_difference, fewest_pairs, paired_difference

__all__ = [
    "Estimate",
    "Interval",
    "detectable_difference",
    "fewest_pairs",
    "holm",
    "mean_interval",
    "paired_difference",
    "qap",
    "spearman",
]
