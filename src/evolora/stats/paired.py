"""Paired differences: the sign-flip test, an interval, what so many pairs can show at all."""

from __future__ import annotations

from math import ceil, inf, log2, sqrt
from typing import TYPE_CHECKING

import numpy as np

from evolora.errors import ProtocolError
from evolora.stats import intervals
from evolora.stats.intervals import UNKNOWN, Estimate, Interval, binomial, bootstrap_interval, vector

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from evolora.stats.intervals import Values


def paired_difference(a: Values, b: Values, level: float = 0.95, seed: int = 0) -> Estimate:
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
    x, y = vector(a), vector(b)
    if x.shape != y.shape:
        raise ProtocolError(f"{x.size} and {y.size} values cannot be paired")
    if not x.size:
        return Estimate(float("nan"), UNKNOWN, 1.0)
    d = x - y
    if np.all(d == d[0]) and np.isin(x, (0, 1)).all() and np.isin(y, (0, 1)).all():
        ci = _constant(float(d[0]), d.size, level)
    else:
        ci = bootstrap_interval(d, level, seed)
    return Estimate(float(d.mean()), ci, _sign_flip(d, seed))


def fewest_pairs(level: float = 0.05) -> int:
    """The fewest pairs whose sign-flip test can reach a level: n pairs have no p below ``2 / 2^n``.

    Five pairs can never reach 0.05.

    Raises:
        ProtocolError: a level outside 0 to 1.
    """
    if not 0 < level < 1:
        raise ProtocolError(f"a level of {level}", mend="give one between 0 and 1")
    return ceil(log2(2 / level))


def detectable_difference(spread: float, pairs: int, level: float = 0.05, power: float = 0.8) -> float:
    """The smallest mean difference that so many pairs would have shown, as a rule of thumb.

    That of the paired t test of normal differences (noncentral t, solved for the effect); infinite where the
    sign-flip test of so many pairs cannot reach the level at all.

    Args:
        spread: standard deviation of the differences.
        pairs: n.
        level: two-sided.
        power: how often it would be shown.
    """
    from scipy.optimize import brentq
    from scipy.stats import nct, t

    if pairs < fewest_pairs(level):
        return inf
    if spread == 0:
        return 0.0
    freedom, bound = pairs - 1, t.ppf(1 - level / 2, pairs - 1)

    def missing(shift: float) -> float:  # the other tail is too rare to count
        return power - float(nct.sf(bound, freedom, shift))

    most = float(bound)
    while missing(most) > 0:
        most *= 1.5
    return float(brentq(missing, 0, most)) * spread / sqrt(pairs)


def _constant(difference: float, pairs: int, level: float) -> Interval:
    """Bounds on the mean of n equal differences of 0/1 outcomes: at most a share ``unseen`` is another."""
    unseen = binomial(0, pairs, level)[1]
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
        n_resamples=intervals.RESAMPLES,
        batch=max(1, intervals.BLOCK // moved.size),
        rng=seed,
    )
    return float(result.pvalue)
