from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from evolora.adapters.noise import normal, permutation, uniform

LONG = 400_000


def draw(count=4096, **address):
    return normal(np.empty(count, np.float32), **{"seed": 0, "tensor": "q.a", **address})


def test_deviates_are_standard_normal():
    x = draw(LONG).astype(np.float64)
    assert abs(x.mean()) < 5 / np.sqrt(LONG)
    assert x.std() == pytest.approx(1, abs=5 / np.sqrt(2 * LONG))
    assert abs(stats.skew(x)) < 5 * np.sqrt(6 / LONG)
    assert stats.kurtosis(x, fisher=False) == pytest.approx(3, abs=5 * np.sqrt(24 / LONG))
    assert stats.kstest(x, "norm").pvalue > 1e-3
    assert np.abs(x).max() < 4.34


@pytest.mark.parametrize("rank", [1, 2, 4, 8, 16])
def test_a_delta_of_any_rank_has_the_standard_deviation_and_the_rank_it_claims(rank):
    a = draw(rank * 512, tensor="a").reshape(rank, 512)
    b = draw(256 * rank, tensor="b").reshape(256, rank)
    delta = b.astype(np.float64) @ a / np.sqrt(rank)
    assert delta.std() == pytest.approx(1, abs=0.1)
    assert np.linalg.matrix_rank(delta) == rank


ADDRESSES = [
    {},
    {"seed": 1},
    {"step": 1},
    {"pair": 1},
    {"tensor": "q.b"},
    {"purpose": "task"},
    {"seed": 1, "tensor": "layers.0"},
    {"seed": 0, "tensor": "layers.1"},
    {"step": 1, "pair": 0},
    {"step": 0, "pair": 1},
    {"seed": -1},
    {"step": 2**32},
    {"pair": 2**32},
]


def test_different_addresses_are_uncorrelated_at_every_offset_tried():
    count = 20_000
    rows = np.stack([draw(count, **address) for address in ADDRESSES])
    bound = 5 / np.sqrt(count)
    correlations = np.corrcoef(rows) - np.eye(len(rows))
    repeated = {(2, 8), (3, 9)}  # the same address, spelled out
    for i in range(len(rows)):
        for j in range(i):
            if (j, i) in repeated:
                assert np.array_equal(rows[i], rows[j])
            else:
                assert abs(correlations[i, j]) < bound, (ADDRESSES[i], ADDRESSES[j])
    for row in rows:
        for lag in (1, 2, 3, 4, 5, 16, 64):
            assert abs(np.corrcoef(row[:-lag], row[lag:])[0, 1]) < bound


def words(**address):
    """All windows of eight (128 bits) in a stream's first 256 deviates: an overlap would show."""
    return {draw(256, **address)[i : i + 8].tobytes() for i in range(0, 249)}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(0, 3),
            st.integers(0, 3),
            st.sampled_from(["a", "b", "layers.0", "layers.1"]),
        ),
        min_size=2,
        max_size=2,
        unique=True,
    )
)
@settings(max_examples=60, deadline=None)
def test_no_two_addresses_share_any_part_of_a_stream(pair):
    first, second = (dict(zip(("seed", "step", "pair", "tensor"), address, strict=True)) for address in pair)
    assert not words(**first) & words(**second)


def test_additive_seed_arithmetic_is_not_what_happens():
    assert not words(seed=1, tensor="0") & words(seed=0, tensor="1")
    assert not words(seed=1, step=0) & words(seed=0, step=1)
    assert not words(seed=1, pair=0) & words(seed=0, pair=1)


@given(st.integers(1, 200), st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_a_shorter_draw_is_the_start_of_a_longer_one(short, more):
    assert np.array_equal(draw(short), draw(short + more)[:short])


def test_the_shape_of_the_output_does_not_matter():
    flat = draw(24 * 35)
    assert np.array_equal(normal(np.empty((24, 35), np.float32), seed=0, tensor="q.a").ravel(), flat)


def test_another_process_draws_the_same_bits():
    code = (
        "import sys, numpy as np; from evolora.adapters.noise import normal;"
        "noise = normal(np.empty(999, np.float32), seed=7, step=3, pair=2, tensor='m');"
        "sys.stdout.buffer.write(noise.tobytes())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert draw(999, seed=7, step=3, pair=2, tensor="m").tobytes() == other


def test_the_bits_are_the_ones_they_were():
    """A checkpoint holds seeds, not noise: these numbers may never change."""
    found = draw(5, seed=12, step=3, pair=4, tensor="model.layers.0.mlp.up_proj.a")
    assert found.tolist() == [
        1.4468841552734375,
        0.701263427734375,
        1.7885894775390625,
        0.2820892333984375,
        0.4221343994140625,
    ]


def test_uniform_numbers_are_uniform_and_addressed():
    x = uniform(100_000, seed=3, purpose="sample")
    assert 0 <= x.min()
    assert x.max() < 1
    assert stats.kstest(x, "uniform").pvalue > 1e-3
    assert np.array_equal(x, uniform(100_000, seed=3, purpose="sample"))
    for other in ({"seed": 4}, {"step": 1}, {"pair": 1}, {"tensor": "t"}, {"purpose": "other"}):
        y = uniform(100_000, **{"seed": 3, "purpose": "sample", **other})
        assert abs(np.corrcoef(x, y)[0, 1]) < 5 / np.sqrt(len(x))


@given(st.integers(0, 300), st.integers(0, 2**40), st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_a_permutation_is_a_permutation(count, seed, step):
    order = permutation(count, seed=seed, step=step, purpose="epoch")
    assert sorted(order.tolist()) == list(range(count))
    assert np.array_equal(order, permutation(count, seed=seed, step=step, purpose="epoch"))


def test_permutations_of_three_are_equally_likely():
    counts = {}
    for step in range(6000):
        order = tuple(permutation(3, seed=0, step=step, purpose="epoch"))
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3
