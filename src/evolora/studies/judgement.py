"""From cells to findings: a paired comparison of two arms, and what many comparisons cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite
from statistics import fmean, stdev

from evolora.stats import detectable_difference, holm, paired_difference
from evolora.studies.study import Cells, Finding

LEVEL = 0.05


def compared(
    cells: Cells, claim: str, better: str, worse: str, key: str, *, higher_is_better: bool = True
) -> Finding:
    """Whether one arm is better than another, paired by seed.

    It holds where the 95 % interval of the mean difference lies above zero and p is below 0.05 (also after
    ``corrected``). A seed of which either arm came to nothing is left out, and counted in the words.

    Args:
        cells: all results.
        claim: its name.
        better: the arm that is said to be better.
        worse: the other.
        key: the number that is compared.
        higher_is_better: of that number; the effect is positive where ``better`` is better.
    """
    both = cells.values(better, key), cells.values(worse, key)
    return _paired(claim, key, (better, worse), both, higher_is_better)


def improved(
    cells: Cells, claim: str, arm: str, key: str, before: str, *, higher_is_better: bool = True
) -> Finding:
    """Whether an arm ends better than it began: as ``gained``, and so does every seed; none may be lost."""
    found = gained(cells, claim, arm, key, before, higher_is_better=higher_is_better)
    return replace(found, holds=found.holds and found.wins == len(cells.seeds))


def gained(
    cells: Cells,
    claim: str,
    arm: str,
    key: str,
    before: str,
    *,
    before_is: str = "its start",
    higher_is_better: bool = True,
) -> Finding:
    """Whether an arm ends better than it began, on average over seeds: as ``compared``.

    Args:
        cells: all results.
        claim: its name.
        arm: the arm.
        key: the number at the end.
        before: the same number at the start, or of something else in the same cell.
        before_is: what that is, in words.
        higher_is_better: of that number.
    """
    both = cells.values(arm, key), cells.values(arm, before)
    return _paired(claim, key, (arm, before_is), both, higher_is_better)


def _paired(
    claim: str,
    key: str,
    names: tuple[str, str],
    both: tuple[Sequence[float], Sequence[float]],
    higher_is_better: bool,
) -> Finding:
    pairs = [(a, b) for a, b in zip(*both, strict=True) if isfinite(a) and isfinite(b)]
    ours, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    gains = [a - b if higher_is_better else b - a for a, b in pairs]
    value, ci, p = paired_difference(gains, [0.0] * len(gains))
    wins = sum(gain > 0 for gain in gains)
    words = f"{key} {spread(ours)} ({names[0]}) against {spread(theirs)} ({names[1]})"
    least = detectable_difference(stdev(gains), len(gains)) if len(pairs) > 1 else inf
    if least < inf:
        words += f"; the smallest difference that so many pairs would show: {least:.3g}"
    if lost := len(both[0]) - len(pairs):
        words += f"; {lost} pairs came to nothing"
    return Finding(claim, ci[0] > 0 and p < LEVEL, value, ci, p, len(pairs), words, wins)


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation in words."""
    if not values:
        return "nothing"
    return f"{fmean(values):.3g}" + (f" +- {stdev(values):.2g}" if len(values) > 1 else "")


def corrected(findings: Sequence[Finding]) -> list[Finding]:
    """The findings with Holm's p over all tests of the study; what does not survive it does not hold."""
    tested = [i for i, finding in enumerate(findings) if isfinite(finding.p)]
    found = list(findings)
    for i, p in zip(tested, holm([findings[i].p for i in tested]), strict=True):
        holds, words = findings[i].holds, findings[i].words
        if holds and p >= LEVEL:
            holds = False
            words += f"; clear alone, but not among {len(tested)} tests (Holm's p {p:.2g})"
        found[i] = replace(findings[i], p_holm=p, holds=holds, words=words)
    return found
