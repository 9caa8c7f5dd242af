"""Confidence intervals of means: bootstrap where there is spread, exact where a bootstrap knows none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from evolora.errors import ProtocolError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Values = Sequence[float] | NDArray[np.floating]

Interval = tuple[float, float]

RESAMPLES = 9999
BLOCK = 1_000_000  # numbers resampled at once: bounds the memory
UNKNOWN: Interval = (float("nan"), float("nan"))


class Estimate(NamedTuple):
    """A value, its confidence interval, and the two-sided p of its being zero."""

    value: float
    ci: Interval
    p: float


def mean_interval(values: Values, level: float = 0.95, seed: int = 0) -> Interval:
    """A confidence interval of the mean: BCa bootstrap (Efron 1987).

    Where all values are 0 or all are 1 a bootstrap knows no spread; then the exact binomial interval
    (Clopper and Pearson 1934) is given, so that 0 of 100 is not claimed to be [0, 0].

    Args:
        values: ``[n]``, finite.
        level: the coverage wanted.
        seed: of the resampling.

    Returns:
        ``(low, high)``; NaNs where nothing can be said: fewer than two values, or values that are all equal
        and neither 0 nor 1.

    Raises:
        ProtocolError: a value is not finite, or the array has more than one axis.
    """
    x = vector(values)
    if x.size >= 1 and np.all(x == x[0]) and x[0] in (0.0, 1.0):
        return binomial(int(x.sum()), x.size, level)
    return bootstrap_interval(x, level, seed)


def vector(values: Values) -> NDArray[np.float64]:
    """The values as one axis of finite numbers.

    Raises:
        ProtocolError: they are something else.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not np.isfinite(x).all():
        raise ProtocolError(f"statistics need one axis of finite values, not shape {x.shape} with NaN or inf")
    return x


def bootstrap_interval(x: NDArray[np.float64], level: float, seed: int) -> Interval:
    """The BCa interval of the mean, percentiles where BCa has no answer; NaNs without spread."""
    from scipy.stats import bootstrap

    if x.size < 2 or np.ptp(x) == 0:
        return UNKNOWN
    for method in ("BCa", "percentile"):  # BCa has no answer where all resamples lie on one side of the mean
        with np.errstate(all="ignore"):
            result = bootstrap(
                (x,),
                np.mean,
                n_resamples=RESAMPLES,
                batch=max(1, BLOCK // x.size),
                confidence_level=level,
                method=method,
                rng=seed,
            )
        low, high = map(float, result.confidence_interval)
        if np.isfinite((low, high)).all():
            break
    return low, high


def binomial(successes: int, trials: int, level: float) -> Interval:
    """The exact interval of a share (Clopper and Pearson 1934)."""
    from scipy.stats import binomtest

    low, high = binomtest(successes, trials).proportion_ci(confidence_level=level, method="exact")
    return float(low), float(high)
