import itertools
import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from evolora.errors import ProtocolError
from evolora.stats import intervals, qap, spearman


def measure(rng, n, weight=1.0, shared=None):
    """A symmetric measure of pairs: what each parent brings, and noise of the pair's own."""
    own = rng.normal(size=n) if shared is None else shared
    noise = rng.normal(size=(n, n))
    return weight * (own[:, None] + own[None, :]) + (noise + noise.T) / 2


def pairs(matrix):
    return matrix[np.triu_indices(len(matrix), 1)]


@pytest.mark.parametrize("ties", [False, True])
def test_rho_is_scipys(ties):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 25))
    if ties:
        x, y = x.round(), y.round()
    assert spearman(x, y).value == pytest.approx(spearmanr(x, y).statistic)


def test_p_is_the_share_of_all_permutations():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 6))
    every = [abs(spearmanr(x, y[list(order)]).statistic) for order in itertools.permutations(range(6))]
    expected = np.mean(np.array(every) >= abs(spearmanr(x, y).statistic) - 1e-12)
    assert spearman(x, y).p == pytest.approx(expected)


def test_many_things_have_the_p_of_the_large_sample_limit():
    rng = np.random.default_rng(2)
    x = rng.normal(size=60)
    y = 0.25 * x + rng.normal(size=60)
    assert spearman(x, y).p == pytest.approx(spearmanr(x, y).pvalue, abs=0.02)


def test_labels_of_parents_are_permuted_rows_and_columns_together():
    rng = np.random.default_rng(3)
    x, y = measure(rng, 5), measure(rng, 5)
    every = []
    for order in itertools.permutations(range(5)):
        moved = y[np.ix_(order, order)]
        every.append(abs(spearmanr(pairs(x), pairs(moved)).statistic))
    value = spearmanr(pairs(x), pairs(y)).statistic
    found = qap(x, y)
    assert found.value == pytest.approx(value)
    assert found.p == pytest.approx(np.mean(np.array(every) >= abs(value) - 1e-12))


def test_the_order_of_the_parents_and_the_diagonal_do_not_matter():
    rng = np.random.default_rng(4)
    x, y = measure(rng, 6), measure(rng, 6)
    order = rng.permutation(6)
    x_other, y_other = (m[np.ix_(order, order)].copy() for m in (x, y))
    np.fill_diagonal(x_other, np.nan)
    assert qap(x_other, y_other)[::2] == pytest.approx(qap(x, y)[::2])


def test_a_naive_test_of_pairs_cries_wolf_and_qap_does_not(monkeypatch):
    """Two measures that have nothing to do with each other, each driven by the parents."""
    monkeypatch.setattr(intervals, "RESAMPLES", 199)
    naive = ours = 0
    for trial in range(120):
        rng = np.random.default_rng(1000 + trial)
        x, y = measure(rng, 9, weight=2.0), measure(rng, 9, weight=2.0)
        naive += spearmanr(pairs(x), pairs(y)).pvalue <= 0.05
        ours += qap(x, y, seed=trial).p <= 0.05
    assert naive / 120 > 0.15
    assert 1 <= ours <= 14  # 6 expected; 14 is above 99.8 % of the binomial


def test_a_true_association_of_parents_is_found_and_its_interval_is_as_wide_as_parents_are_few():
    rng = np.random.default_rng(5)
    shared = rng.normal(size=12)
    x, y = (measure(rng, 12, weight=2.0, shared=shared) for _ in range(2))
    found = qap(x, y)
    assert found.p < 0.01
    assert found.ci[0] > 0
    of_pairs = spearman(pairs(x), pairs(y)).ci
    assert found.ci[1] - found.ci[0] > of_pairs[1] - of_pairs[0]


def test_pairs_that_were_not_measured_are_left_out():
    rng = np.random.default_rng(6)
    x, y = measure(rng, 6), measure(rng, 6)
    x[0, 1] = x[1, 0] = np.nan
    kept = [(i, j) for i, j in itertools.combinations(range(6), 2) if (i, j) != (0, 1)]
    expected = spearmanr([x[i, j] for i, j in kept], [y[i, j] for i, j in kept]).statistic
    assert qap(x, y).value == pytest.approx(expected)


def test_what_is_constant_or_too_small_has_no_rho():
    for found in (
        spearman([1.0] * 9, range(9)),
        spearman([1.0, 2.0], [1.0, 2.0]),
        qap(np.ones((5, 5)), np.eye(5)),
    ):
        assert math.isnan(found.value)
        assert found.p == 1


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ProtocolError, match="cannot be paired"):
        spearman([1.0, 2.0, 3.0], [1.0, 2.0])
    with pytest.raises(ProtocolError, match="two symmetric matrices"):
        qap(np.arange(9.0).reshape(3, 3), np.eye(3))
    with pytest.raises(ProtocolError, match="two symmetric matrices"):
        qap(np.eye(3), np.eye(4))
