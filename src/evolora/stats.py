"""Intervals and tests for means and paired differences: thin over scipy, careful with degenerate data."""

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


class PairedDifference(NamedTuple):
    """The mean of ``a - b`` over pairs, its interval, and the two-sided p of no difference."""

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
    x = _vector(values)
    if x.size >= 1 and np.all(x == x[0]) and x[0] in (0.0, 1.0):
        return _binomial(int(x.sum()), x.size, level)
    return _bootstrap(x, level, seed)


def paired_difference(a: Values, b: Values, level: float = 0.95, seed: int = 0) -> PairedDifference:
    """How much better ``a`` is than ``b`` on the same prompts or seeds.

    The interval is the BCa bootstrap of the differences. The p-value is the sign-flip test (Fisher 1935):
    exact where at most 13 differences are not zero, else from 9999 random flips. Where all differences are
    the same and each is -1, 0 or 1 (0/1 outcomes), the interval comes from the exact binomial bound on how
    many could have differed.

    Args:
        a: ``[n]``, finite.
        b: ``[n]``, finite, pair by pair.
        level: the coverage wanted.
        seed: of the resampling.

    Returns:
        The mean of ``a - b``, its interval (NaNs where nothing can be said, see :func:`mean_interval`) and p.

    Raises:
        ProtocolError: different lengths, or a value that is not finite.
    """
    x, y = _vector(a), _vector(b)
    if x.shape != y.shape:
        raise ProtocolError(f"{x.size} and {y.size} values cannot be paired")
    if not x.size:
        return PairedDifference(float("nan"), UNKNOWN, 1.0)
    d = x - y
    if np.all(d == d[0]) and np.isin(x, (0, 1)).all() and np.isin(y, (0, 1)).all():
        ci = _constant(float(d[0]), d.size, level)
    else:
        ci = _bootstrap(d, level, seed)
    return PairedDifference(float(d.mean()), ci, _sign_flip(d, seed))


def _vector(values: Values) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not np.isfinite(x).all():
        raise ProtocolError(f"statistics need one axis of finite values, not shape {x.shape} with NaN or inf")
    return x


def _bootstrap(x: NDArray[np.float64], level: float, seed: int) -> Interval:
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


def _binomial(successes: int, trials: int, level: float) -> Interval:
    from scipy.stats import binomtest

    low, high = binomtest(successes, trials).proportion_ci(confidence_level=level, method="exact")
    return float(low), float(high)


def _constant(difference: float, pairs: int, level: float) -> Interval:
    """Bounds on the mean of n equal differences of 0/1 outcomes: at most a share ``unseen`` is another."""
    unseen = _binomial(0, pairs, level)[1]
    reach = unseen if difference == 0 else 2 * unseen
    return max(-1.0, difference - reach), min(1.0, difference + reach)


def _sign_flip(d: NDArray[np.float64], seed: int) -> float:
    from scipy.stats import permutation_test

    moved = d[d != 0]  # flipping the sign of a zero changes nothing
    if moved.size < 2:
        return 1.0
    result = permutation_test(
        (moved,),
        np.mean,
        permutation_type="samples",
        n_resamples=RESAMPLES,
        batch=max(1, BLOCK // moved.size),
        rng=seed,
    )
    return float(result.pvalue)
