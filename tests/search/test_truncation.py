import pytest
import torch

from evolora.search.truncation import truncate


def example(shape, rank=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    if rank is None:
        return torch.randn(shape, generator=generator)
    return torch.randn(shape[0], rank, generator=generator) @ torch.randn(rank, shape[1], generator=generator)


@pytest.mark.parametrize("shape", [(9, 30), (30, 9), (12, 12)])
@pytest.mark.parametrize("rank", [1, 4, 8])
def test_it_is_the_best_approximation_and_states_what_it_leaves_out(shape, rank):
    delta = example(shape)
    found, values = truncate(delta, rank), torch.linalg.svdvals(delta.double())
    assert found.factors.rank == rank
    assert found.norm == pytest.approx(delta.norm().item(), rel=1e-6)
    assert found.lost == pytest.approx(values[rank:].norm().item(), rel=1e-6)
    assert (delta - found.factors.delta()).norm().item() == pytest.approx(found.lost, rel=1e-5)
    assert found.error == pytest.approx(found.lost / found.norm)


@pytest.mark.parametrize("shape", [(9, 30), (30, 9)])
def test_a_delta_of_that_rank_comes_back_whole(shape):
    delta = example(shape, rank=3)
    for rank in (3, 5, 100):
        found = truncate(delta, rank)
        torch.testing.assert_close(found.factors.delta(), delta, rtol=1e-4, atol=1e-5)
        assert found.factors.rank == min(rank, 9)
        assert found.error < 1e-6


def test_the_factors_share_the_spectrum_evenly():
    factors = truncate(example((9, 30)), 4).factors
    torch.testing.assert_close(factors.b.T @ factors.b, factors.a @ factors.a.T, rtol=1e-4, atol=1e-4)


def test_a_delta_of_zeros_gives_factors_of_zeros():
    found = truncate(torch.zeros(4, 6), 2)
    assert not found.factors.a.any()
    assert not found.factors.b.any()
    assert found.error == 0.0


@pytest.mark.parametrize("size", [1e-6, 1e6])
def test_the_scale_of_the_delta_does_not_matter(size):
    delta = example((8, 20)) * size
    found = truncate(delta, 3)
    assert found.error == pytest.approx(truncate(delta / size, 3).error, rel=1e-5)
    assert (delta - found.factors.delta()).norm().item() == pytest.approx(found.lost, rel=1e-4)
