import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, norm
from scipy.stats import t as t_distribution

from evolora.errors import ProtocolError
from evolora.stats import detectable_difference, fewest_pairs, intervals, mean_interval, paired_difference


def bca_by_hand(x, level, resamples=20_000):
    """Efron 1987, equations 2.3 and 6.6, written out."""
    rng = np.random.default_rng(123)
    means = np.sort(x[rng.integers(0, len(x), (resamples, len(x)))].mean(1))
    share = ((means < x.mean()).mean() + (means <= x.mean()).mean()) / 2
    bias = norm.ppf(share)
    jackknife = (x.sum() - x) / (len(x) - 1)
    d = jackknife.mean() - jackknife
    acceleration = (d**3).sum() / (6 * (d**2).sum() ** 1.5)
    z = bias + norm.ppf([(1 - level) / 2, (1 + level) / 2])
    return np.quantile(means, norm.cdf(bias + z / (1 - acceleration * z)))


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_interval_is_the_bca_bootstrap(level):
    x = np.random.default_rng(0).exponential(size=60)
    assert mean_interval(x, level) == pytest.approx(bca_by_hand(x, level), abs=0.02)


def test_the_interval_covers_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr(intervals, "RESAMPLES", 999)
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(200):
        low, high = mean_interval((rng.random(100) < 0.3).astype(float), seed=trial)
        covered += low <= 0.3 <= high
    assert 180 <= covered <= 199


@pytest.mark.parametrize(("value", "low", "high"), [(0.0, 0.0, 0.0362), (1.0, 0.9638, 1.0)])
def test_a_hundred_equal_answers_do_not_claim_certainty(value, low, high):
    ends = mean_interval([value] * 100)
    assert ends == pytest.approx((low, high), abs=1e-4)
    assert ends == pytest.approx((0, beta.ppf(0.975, 1, 100)) if value == 0 else (beta.ppf(0.025, 100, 1), 1))


def test_where_nothing_can_be_said_the_interval_is_nan():
    for values in ([], [0.5], [0.5, 0.5, 0.5]):
        assert all(map(math.isnan, mean_interval(values)))


def test_one_answer_of_zero_or_one_has_the_exact_interval():
    assert mean_interval([1.0]) == pytest.approx((0.025, 1))


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=6))
@settings(max_examples=20, deadline=None)
def test_an_interval_of_few_answers_is_finite_and_holds_the_mean(values):
    low, high = mean_interval(values)
    assert 0 <= low <= np.mean(values) <= high <= 1


def test_the_same_seed_gives_the_same_interval_whatever_the_block(monkeypatch):
    x = np.random.default_rng(2).normal(size=40)
    whole = mean_interval(x, seed=4)
    assert mean_interval(x, seed=4) == whole
    assert mean_interval(x, seed=5) != whole
    monkeypatch.setattr(intervals, "BLOCK", 1000)
    assert mean_interval(x, seed=4) == pytest.approx(whole, abs=0.02)


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 2.0]), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_the_p_value_is_the_exact_sign_flip_test(differences):
    d = np.array(differences)
    flips = np.array(list(itertools.product((1, -1), repeat=len(d))))
    means = (flips * d).mean(1)
    higher = (means >= d.mean() - 1e-12).mean()
    lower = (means <= d.mean() + 1e-12).mean()
    assert paired_difference(d, np.zeros_like(d)).p == pytest.approx(min(1.0, 2 * min(higher, lower)))


def test_eight_wins_of_eight_have_the_smallest_p_there_is():
    assert paired_difference(np.arange(1.0, 9.0), np.zeros(8)).p == pytest.approx(2 / 2**8)


def test_many_pairs_are_sampled_and_agree_with_the_normal_limit():
    rng = np.random.default_rng(3)
    a, b = rng.normal(0.15, 1, 300), rng.normal(0, 1, 300)
    d = a - b
    p = paired_difference(a, b).p
    assert p == pytest.approx(2 * norm.sf(abs(d.sum()) / np.sqrt((d**2).sum())), abs=0.02)


def test_without_a_difference_small_p_values_are_as_rare_as_they_should_be(monkeypatch):
    monkeypatch.setattr(intervals, "RESAMPLES", 499)
    rng = np.random.default_rng(4)
    small = sum(paired_difference(rng.random(30), rng.random(30), seed=i).p <= 0.1 for i in range(100))
    assert 2 <= small <= 19


def test_the_difference_is_a_minus_b_with_the_interval_of_the_differences():
    rng = np.random.default_rng(5)
    a, b = rng.random(50), rng.random(50)
    found = paired_difference(a, b, seed=6)
    assert found.value == pytest.approx(np.mean(a - b))
    assert found.ci == pytest.approx(mean_interval(a - b, seed=6))
    back = paired_difference(b, a, seed=6)
    assert back.value == pytest.approx(-found.value)
    assert back.p == pytest.approx(found.p, abs=0.02)


def test_two_members_that_answer_alike_do_not_claim_certainty():
    same = [0.0, 1.0] * 50
    value, (low, high), p = paired_difference(same, same)
    assert (value, p) == (0, 1)
    assert (low, high) == pytest.approx((-beta.ppf(0.975, 1, 100), beta.ppf(0.975, 1, 100)))


def test_one_member_always_right_where_the_other_is_always_wrong():
    value, (low, high), p = paired_difference([1.0] * 50, [0.0] * 50)
    assert value == high == 1
    assert 0.8 < low < 0.9
    assert p < 0.001


def test_equal_differences_of_other_kinds_have_no_interval():
    found = paired_difference([0.5, 0.75], [0.25, 0.5])
    assert found.value == 0.25
    assert all(map(math.isnan, found.ci))


def test_one_pair_and_no_pair_are_answered_without_a_crash():
    one, none = paired_difference([0.3], [0.1]), paired_difference([], [])
    assert one.value == pytest.approx(0.2)
    assert one.p == none.p == 1
    assert all(map(math.isnan, (*one.ci, *none.ci, none.value)))


def test_values_that_are_no_numbers_are_refused():
    for values in ([float("nan"), 1.0], [[1.0, 2.0]]):
        with pytest.raises(ProtocolError, match="finite values"):
            mean_interval(values)
    with pytest.raises(ProtocolError, match="2 and 1 values cannot be paired"):
        paired_difference([1.0, 2.0], [1.0])


@pytest.mark.parametrize(("level", "pairs"), [(0.05, 6), (0.01, 8), (0.5, 2)])
def test_fewer_pairs_cannot_reach_a_level(level, pairs):
    assert fewest_pairs(level) == pairs
    assert paired_difference(np.arange(1.0, pairs + 1), np.zeros(pairs)).p <= level
    assert paired_difference(np.arange(1.0, pairs), np.zeros(pairs - 1)).p > level


def test_the_detectable_difference_is_detected_as_often_as_it_says():
    effect = detectable_difference(2.0, 12)
    rng = np.random.default_rng(7)
    d = rng.normal(effect, 2.0, (4000, 12))
    t = d.mean(1) / (d.std(1, ddof=1) / np.sqrt(12))
    assert (np.abs(t) > t_distribution.ppf(0.975, 11)).mean() == pytest.approx(0.8, abs=0.02)
    assert detectable_difference(1.0, 48) < effect / 2
    assert detectable_difference(1.0, 5) == math.inf
    assert detectable_difference(0.0, 8) == 0
