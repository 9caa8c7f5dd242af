from itertools import combinations

import numpy as np
import pytest
import torch
from dense_evaluation import matrices, perturbations

from evolora.adapters.noise import normal
from evolora.search import Eggroll
from evolora.search.perturbation import Perturbation

BIG = matrices((120, 150), (120, 150))


def correlation(one, two):
    return abs(torch.corrcoef(torch.stack([one.flatten(), two.flatten()]))[0, 1].item())


def first_members(seed=0, step=0, **options):
    method = Eggroll(**options)
    state = method.init(BIG, seed)
    for _ in range(step):
        method.ask(state)
        state, _ = method.tell(state, torch.zeros(method.population, 1))
    return perturbations(method.ask(state))


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 8, 16])
def test_a_perturbation_has_the_stated_rank_and_standard_deviation(rank):
    for delta in first_members(rank=rank, sigma=0.03, population=8).values():
        assert all(torch.linalg.matrix_rank(member).item() == rank for member in delta)
        directions = delta[0::2]
        assert directions.std().item() == pytest.approx(0.03, rel=0.06)
        assert abs(directions.mean().item()) < 0.03 * 0.05


@pytest.mark.parametrize("rank", [1, 4])
def test_antithetic_pairs_sum_to_zero_exactly(rank):
    for delta in first_members(rank=rank, population=6).values():
        assert torch.equal(delta[0::2], -delta[1::2])
        assert delta.any()


@pytest.mark.parametrize("factors", ["b", "ab"])
def test_antithetic_pairs_on_factors_are_mirrored_around_the_mean(factors):
    method = Eggroll(space="factors", factors=factors, rank=2, export_rank=4, population=64, sigma=0.5)
    state = method.init(BIG, 0)
    mean = method.adapter(state).modules
    for name, stack in method.ask(state).block(range(64)).items():
        torch.testing.assert_close(stack.b[0::2] + stack.b[1::2], 2 * mean[name].b.expand(32, -1, -1))
        torch.testing.assert_close(stack.a[0::2] + stack.a[1::2], 2 * mean[name].a.expand(32, -1, -1))
        assert bool((stack.a[0] != stack.a[1]).any()) == (factors == "ab")
        moved = stack.b[0] - mean[name].b
        assert torch.linalg.matrix_rank(moved).item() == 2
        assert (stack.b - mean[name].b).std().item() == pytest.approx(0.5, rel=0.1)
        if factors == "ab":
            unit = 1 / np.sqrt(BIG[name].d_in)
            assert (stack.a - mean[name].a).std().item() == pytest.approx(0.5 * unit, rel=0.1)


def test_layers_members_steps_and_seeds_are_uncorrelated():
    name, other = BIG
    here = first_members(population=4, rank=8)
    drawn = [
        here[name][0],
        here[name][2],
        here[other][0],
        first_members(population=4, rank=8, step=1)[name][0],
        first_members(population=4, rank=8, seed=1)[name][0],
    ]
    for one, two in combinations(drawn, 2):
        assert correlation(one, two) < 0.06  # 18,000 entries of rank-8 products: three standard errors


def test_one_sided_members_take_directions_of_their_own():
    for delta in first_members(antithetic=False, shaping="zscore", population=5, rank=8).values():
        assert all(correlation(one, two) < 0.06 for one, two in combinations(delta, 2))


def test_the_noise_is_addressed_by_seed_step_pair_and_module():
    a, b = Perturbation(seed=7, step=3, rank=2).factors("layer", (4, 5), [6, 1])
    for i, pair in enumerate((6, 1)):
        for factor, side in ((a, "a"), (b, "b")):
            expected = np.empty(factor[i].shape, np.float32)
            normal(expected, seed=7, step=3, pair=pair, tensor=f"layer/{side}")
            np.testing.assert_array_equal(factor[i].numpy(), expected)


@pytest.mark.parametrize("rank", [1, 3])
def test_dense_directions_are_the_products_of_the_factors(rank):
    noise = Perturbation(seed=1, step=2, rank=rank)
    a, b = noise.factors("layer", (6, 7), [0, 4])
    torch.testing.assert_close(noise.dense("layer", (6, 7), [0, 4]), b @ a / rank**0.5)


def test_a_weighted_sum_is_the_sum_of_dense_directions_also_in_chunks(monkeypatch):
    noise, weights = Perturbation(seed=1, step=2, rank=3), torch.tensor([0.5, 0.0, -2.0, 1.0, 0.25])
    expected = (weights[:, None, None] * noise.dense("layer", (6, 7), range(5))).sum(dim=0)
    torch.testing.assert_close(noise.combine("layer", (6, 7), weights), expected)
    monkeypatch.setattr("evolora.search.perturbation._CHUNK", 80)
    torch.testing.assert_close(noise.combine("layer", (6, 7), weights), expected)


def test_a_sum_without_weight_is_zero():
    assert not Perturbation(seed=1, step=2, rank=3).combine("layer", (6, 7), torch.zeros(4)).any()


def test_whole_pairs_share_one_set_of_factors_and_broken_pairs_do_not():
    method = Eggroll(population=6)
    population = method.ask(method.init(BIG, 0))
    name = next(iter(BIG))
    groups = {
        (0, 1, 2, 3): 2,
        (4, 5, 0, 1): 2,
        (1, 0): 2,
        (1, 2): 2,
        (0, 1, 2): 3,
        (3,): 1,
    }
    for members, expected in groups.items():
        assert len(population.block(members)[name].a) == expected
