from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evolora.adapters import Adapter, Factors
from evolora.adapters import geometry as geo
from evolora.errors import AdapterError

SHAPES = {"q": (5, 7), "k": (6, 3), "embed": (4, 11)}


def draw(seed, modules=("q", "k", "embed"), rank=2, scale=1.0, size=1.0):
    generator = torch.Generator().manual_seed(seed)
    built = {}
    for name in modules:
        d_out, d_in = SHAPES[name]
        a, b = torch.randn(rank, d_in, generator=generator), torch.randn(d_out, rank, generator=generator)
        built[name] = Factors(a * size, b * size, scale, None, "embedding" if name == "embed" else "linear")
    return Adapter(built, name=f"a{seed}")


def dense(adapter):
    """All deltas of an adapter as one long vector; the brute force."""
    return torch.cat(
        [
            adapter.modules[name].scale
            * (adapter.modules[name].b.double() @ adapter.modules[name].a.double()).flatten()
            if name in adapter.modules
            else torch.zeros(math.prod(shape), dtype=torch.float64)
            for name, shape in SHAPES.items()
        ]
    )


adapters = st.builds(
    draw,
    st.integers(0, 2**30),
    st.lists(st.sampled_from(sorted(SHAPES)), min_size=1, max_size=3, unique=True),
    st.integers(1, 9),
    st.floats(-5, 5).filter(lambda x: abs(x) > 0.01),
    st.sampled_from([1e-3, 1.0, 1e3]),
)


@given(adapters, adapters)
@settings(max_examples=150, deadline=None)
def test_norm_inner_distance_and_cosine_equal_brute_force(a, b):
    x, y = dense(a), dense(b)
    size = float(x.norm() * y.norm())
    assert geo.norm(a) == pytest.approx(float(x.norm()), rel=1e-10)
    assert geo.inner(a, b) == pytest.approx(float(x @ y), rel=1e-10, abs=1e-10 * size)
    assert geo.cosine(a, b) == pytest.approx(float(x @ y) / size, abs=1e-10)
    assert geo.distance(a, b) == pytest.approx(
        float((x - y).norm()), rel=1e-10, abs=1e-13 * float(x.norm() + y.norm())
    )


@given(st.lists(adapters, min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_the_cosine_matrix_equals_brute_force_pair_by_pair(members):
    vectors = torch.stack([dense(member) / dense(member).norm() for member in members])
    cosines = geo.cosine_matrix(members)
    torch.testing.assert_close(cosines, vectors @ vectors.T, rtol=0, atol=1e-10)
    assert torch.equal(cosines, cosines.T)
    assert torch.equal(cosines.diagonal(), torch.ones(len(members), dtype=torch.float64))


def another_gauge(factors, seed):
    """The same delta in other factors: a rotation, signs, two padding ranks, another alpha."""
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(factors.rank, factors.rank, generator=generator).double()).Q
    signs = torch.randint(0, 2, (factors.rank,), generator=generator) * 2.0 - 1
    a = rotation.T @ (signs[:, None] * factors.a).double()
    b = (factors.b * signs).double() @ rotation * 4
    a = torch.cat([a, torch.zeros(2, a.shape[1])])
    b = torch.cat([b, torch.randn(b.shape[0], 2, generator=generator)], 1)
    return Factors(a, b, factors.scale / 4, None, factors.kind)


@given(adapters, st.integers(0, 2**20))
@settings(max_examples=80, deadline=None)
def test_nothing_depends_on_how_a_delta_is_factored(adapter, seed):
    twin = Adapter({name: another_gauge(factors, seed) for name, factors in adapter.modules.items()})
    size = geo.norm(adapter)
    assert geo.norm(twin) == pytest.approx(size, rel=1e-6)
    assert geo.cosine(adapter, twin) == pytest.approx(1, abs=1e-6)
    assert geo.distance(adapter, twin) < 1e-6 * size
    for name, factors in adapter.modules.items():
        before, after = geo.spectrum(factors), geo.spectrum(twin.modules[name])
        torch.testing.assert_close(after[: len(before)], before, rtol=1e-6, atol=1e-6 * float(before[0]))
        assert after[len(before) :].abs().sum() < 1e-6 * before[0]


def test_the_distance_of_twins_is_exact_where_a_difference_of_squares_would_not_be():
    a = draw(3)
    b = Adapter({**a.modules, "q": Factors(a.modules["q"].a, a.modules["q"].b, 1 + 2.0**-40, None, "linear")})
    expected = 2.0**-40 * float(geo.spectrum(a.modules["q"]).norm())
    assert geo.distance(a, b) == pytest.approx(expected, rel=1e-2)
    assert geo.distance(a, a) < 1e-14 * geo.norm(a)


def test_an_antipode_has_cosine_minus_one_and_twice_the_norm_as_distance():
    a = draw(1)
    b = Adapter({n: Factors(-f.a, f.b, f.scale, None, f.kind) for n, f in a.modules.items()})
    assert geo.cosine(a, b) == pytest.approx(-1, abs=1e-12)
    assert geo.distance(a, b) == pytest.approx(2 * geo.norm(a), rel=1e-12)


def test_adapters_on_different_modules_are_orthogonal():
    a, b = draw(1, ["q"]), draw(2, ["k"])
    assert geo.inner(a, b) == 0
    assert geo.distance(a, b) == pytest.approx(math.hypot(geo.norm(a), geo.norm(b)))


def test_a_zero_delta_has_no_direction():
    zero = Adapter({"q": Factors(torch.zeros(2, 7), torch.ones(5, 2))})
    assert geo.norm(zero) == 0
    assert math.isnan(geo.cosine(zero, draw(1)))
    assert geo.norm(Adapter({"q": Factors(torch.zeros(0, 7), torch.zeros(5, 0))})) == 0
    assert (
        geo.stable_rank(geo.spectrum(zero.modules["q"]))
        == geo.effective_rank(geo.spectrum(zero.modules["q"]))
        == 0
    )


def test_adapters_of_different_bases_cannot_be_compared():
    other = Adapter({"q": Factors(torch.ones(1, 8), torch.ones(5, 1))}, name="other")
    for compare in (geo.inner, geo.cosine, geo.distance):
        with pytest.raises(AdapterError, match="different bases"):
            compare(draw(1), other)


def test_long_rows_are_summed_in_pieces_to_the_same_result(monkeypatch):
    members = [draw(1), draw(2, rank=3), draw(3, ["embed"])]
    whole = geo.gram(members)
    monkeypatch.setattr(geo, "_COLUMNS", 3)
    torch.testing.assert_close(geo.gram(members), whole, rtol=1e-13, atol=1e-13)


def test_module_norms_add_up_to_the_norm():
    a = draw(9)
    norms = geo.module_norms(a)
    assert norms.keys() == a.modules.keys()
    assert math.hypot(*norms.values()) == pytest.approx(geo.norm(a))


@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 6), st.floats(0.1, 4), st.integers(0, 2**20))
@settings(max_examples=80, deadline=None)
def test_the_spectrum_equals_a_dense_svd(rank, d_out, d_in, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    factors = Factors(
        torch.randn(rank, d_in, generator=generator), torch.randn(d_out, rank, generator=generator), scale
    )
    expected = torch.linalg.svdvals(scale * factors.b.double() @ factors.a.double())
    found = geo.spectrum(factors)
    assert len(found) == min(rank, d_out, d_in)
    torch.testing.assert_close(found, expected[: len(found)], rtol=1e-9, atol=1e-9 * float(expected[0]))


def test_ranks_of_known_spectra():
    flat, single = torch.ones(4).double(), torch.tensor([3.0, 0, 0]).double()
    assert geo.stable_rank(flat) == pytest.approx(4)
    assert geo.effective_rank(flat) == pytest.approx(4)
    assert geo.stable_rank(single) == pytest.approx(1)
    assert geo.effective_rank(single) == pytest.approx(1)
    two = torch.tensor([0.75, 0.25]).double()
    assert geo.effective_rank(two) == pytest.approx(math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)))
    assert geo.stable_rank(two) == pytest.approx(10 / 9)


@given(
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(1, 40),
    st.integers(0, 2**20),
    st.sampled_from([0.01, 1, 30]),
)
@settings(max_examples=80, deadline=None)
def test_dora_norms_equal_the_dense_ones_alone_and_stacked(rank, d_out, d_in, seed, size):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(d_out, d_in, generator=generator)
    a, b = (
        torch.randn(3, rank, d_in, generator=generator),
        size * torch.randn(3, d_out, rank, generator=generator),
    )
    expected = (weight.double() + b.double() @ a.double()).norm(dim=-1)
    scale = weight.double().norm() + (b.double() @ a.double()).norm()
    found = geo.weight_norms(weight, a, b)
    assert (found.shape, found.dtype) == ((3, d_out), torch.float32)
    assert (found.double() - expected).abs().max() < 1e-3 * scale
    typical = expected > 0.1 * scale / math.sqrt(d_out)
    torch.testing.assert_close(found.double()[typical], expected[typical], rtol=1e-5, atol=0)
    torch.testing.assert_close(
        geo.weight_norms(weight, a[1], b[1]), found[1], rtol=1e-4, atol=1e-4 * float(scale)
    )


def test_no_dense_delta_is_ever_formed():
    """Two modules of a million inputs and outputs: a dense delta would take 8 terabytes."""
    wide = 1_000_000
    a = Adapter({"q": Factors(torch.ones(1, wide), torch.ones(wide, 1))})
    b = Adapter({"q": Factors(torch.ones(1, wide), -torch.ones(wide, 1), 2.0)})
    assert geo.norm(a) == pytest.approx(wide)
    assert geo.cosine(a, b) == pytest.approx(-1)
    assert geo.distance(a, b) == pytest.approx(3 * wide)
    assert float(geo.spectrum(b.modules["q"])[0]) == pytest.approx(2 * wide)


@pytest.mark.parametrize("rank", [1, 4])
def test_one_a_under_many_names_gives_the_norms_of_copies(rank):
    generator = torch.Generator().manual_seed(rank)
    weight, a = torch.randn(6, 30, generator=generator), torch.randn(rank, 30, generator=generator)
    b = torch.randn(5, 6, rank, generator=generator)
    shared = geo.weight_norms(weight, a.expand(5, -1, -1), b)
    torch.testing.assert_close(shared, geo.weight_norms(weight, a.repeat(5, 1, 1), b), rtol=1e-6, atol=0)
    torch.testing.assert_close(shared, (weight + b @ a).norm(dim=-1), rtol=1e-5, atol=0)
    alone = torch.stack([geo.weight_norms(weight, a, one) for one in b])
    assert torch.equal(shared, alone)
