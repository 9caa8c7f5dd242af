"""Rank correlation: of single things, and of pairs that share parents.

A measure of two adapters and another of the same two, over all pairs of n parents: the n (n - 1) / 2 pairs
are not independent, each parent stands in n - 1 of them, and a test that takes them as independent rejects
far too often. QAP permutes the parents' labels of one measure, rows and columns together (Mantel 1967,
Hubert 1987); the interval resamples parents, not pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from math import factorial
from typing import TYPE_CHECKING

import numpy as np

from evolora.errors import ProtocolError
from evolora.stats import intervals
from evolora.stats.intervals import UNKNOWN, Estimate, vector

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from evolora.stats.intervals import Values


def spearman(x: Values, y: Values, level: float = 0.95, seed: int = 0) -> Estimate:
    """Rank correlation of independent things.

    The p-value permutes one side (exact up to 7 of them, else 9999 permutations); the interval is the
    percentile bootstrap over things.

    Args:
        x: ``[n]``, finite.
        y: ``[n]``, finite.
        level: of the interval.
        seed: of the resampling.

    Raises:
        ProtocolError: different lengths, or a value that is not finite.
    """
    a, b = vector(x), vector(y)
    if a.shape != b.shape:
        raise ProtocolError(f"{a.size} and {b.size} values cannot be paired")
    rng = np.random.default_rng(seed)
    orders = _orders(a.size, rng)
    drawn = rng.integers(0, max(1, a.size), (intervals.RESAMPLES, a.size))
    shuffled = _rhos(len(orders), lambda part: (np.broadcast_to(a, orders[part].shape), b[orders[part]]))
    again = _rhos(len(drawn), lambda part: (a[drawn[part]], b[drawn[part]]))
    return _found(shuffled, again, level)


def qap(x: NDArray[np.floating], y: NDArray[np.floating], level: float = 0.95, seed: int = 0) -> Estimate:
    """Rank correlation of two symmetric measures over all pairs of n parents.

    Args:
        x: ``[n, n]``, symmetric; the diagonal is not looked at, nan leaves a pair out.
        y: ``[n, n]``, likewise.
        level: of the interval, a percentile bootstrap over parents (a parent drawn twice makes no pair with
            itself).
        seed: of the resampling.

    Returns:
        rho over the pairs that both measures have, the interval, and p from permuted labels (exact up to 7
        parents, else 9999 permutations).

    Raises:
        ProtocolError: they are no symmetric matrices of one size.
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    n = len(a)
    if a.shape != (n, n) or b.shape != (n, n) or not all(_symmetric(m) for m in (a, b)):
        raise ProtocolError(f"measures of shapes {a.shape} and {b.shape}", mend="give two symmetric matrices")
    first, second = np.triu_indices(n, 1)
    rng = np.random.default_rng(seed)
    orders, drawn = _orders(n, rng), rng.integers(0, max(1, n), (intervals.RESAMPLES, n))

    def labelled(part: slice) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        rows, columns = orders[part][:, first], orders[part][:, second]
        return np.broadcast_to(a[first, second], rows.shape), b[rows, columns]

    def resampled(part: slice) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        rows, columns = drawn[part][:, first], drawn[part][:, second]
        twins = rows == columns
        return np.where(twins, np.nan, a[rows, columns]), np.where(twins, np.nan, b[rows, columns])

    return _found(_rhos(len(orders), labelled), _rhos(len(drawn), resampled), level)


def _orders(n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The identity, then all other permutations where they are few, else random ones: ``[K, n]``."""
    if n <= 7 and factorial(n) <= intervals.RESAMPLES:
        return np.array(list(permutations(range(n))), dtype=np.int64).reshape(-1, n)
    return np.array([range(n), *(rng.permutation(n) for _ in range(intervals.RESAMPLES))], dtype=np.int64)


def _rhos(
    count: int, sides: Callable[[slice], tuple[NDArray[np.float64], NDArray[np.float64]]]
) -> NDArray[np.float64]:
    """Spearman's rho of each row of two ``[count, P]`` arrays made in parts; nan leaves a column out."""
    size = max(1, sides(slice(0, 1))[0].size)
    step = max(1, intervals.BLOCK // size)
    parts = [_rho(*sides(slice(start, start + step))) for start in range(0, count, step)]
    return np.concatenate(parts)


def _rho(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.stats import rankdata

    kept = np.isfinite(x) & np.isfinite(y)
    middle = (kept.sum(1, keepdims=True) + 1) / 2
    # what is left out ranks last, so that the others' ranks are theirs
    a, b = (np.where(kept, rankdata(np.where(kept, s, np.inf), axis=1) - middle, 0) for s in (x, y))
    length = np.sqrt((a * a).sum(1) * (b * b).sum(1))
    few = (length == 0) | (kept.sum(1) < 3)
    return np.where(few, np.nan, (a * b).sum(1) / np.where(few, 1, length))


def _found(shuffled: NDArray[np.float64], again: NDArray[np.float64], level: float) -> Estimate:
    """The first of the shuffled is the value itself; p is how often another is as far from zero."""
    value = float(shuffled[0])
    if np.isnan(value):
        return Estimate(value, UNKNOWN, 1.0)
    p = (np.abs(shuffled[~np.isnan(shuffled)]) >= abs(value) - 1e-12).mean()
    known, ends = again[~np.isnan(again)], [(1 - level) / 2, (1 + level) / 2]
    if len(known) < len(again) / 2:
        return Estimate(value, UNKNOWN, float(p))
    low, high = np.quantile(known, ends)
    return Estimate(value, (float(low), float(high)), float(p))


def _symmetric(measure: NDArray[np.float64]) -> bool:
    off = ~np.eye(len(measure), dtype=bool)
    return bool(np.allclose(measure[off], measure.T[off], equal_nan=True))
