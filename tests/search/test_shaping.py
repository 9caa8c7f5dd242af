from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata

from evolora.errors import ConfigError, ProtocolError
from evolora.search import shape

KINDS = ["pair_rms", "centred", "zscore", "ranks", "raw"]
CASES = [
    (kind, antithetic) for kind in KINDS for antithetic in (True, False) if antithetic or kind != "pair_rms"
]
NAN = float("nan")

every_kind = pytest.mark.parametrize(("kind", "antithetic"), CASES)
every_free_kind = pytest.mark.parametrize(
    ("kind", "antithetic"), [case for case in CASES if case[0] != "raw"]
)


@st.composite
def tables(draw, missing=False):
    members, prompts = 2 * draw(st.integers(1, 6)), draw(st.integers(1, 5))
    values = st.integers(-8, 8).map(lambda i: i / 4)
    values = st.one_of(st.just(NAN), values) if missing else values
    return torch.tensor([[draw(values) for _ in range(prompts)] for _ in range(members)])


def shaped(rewards, kind, antithetic):
    return shape(rewards, kind, antithetic=antithetic)


@every_free_kind
@settings(max_examples=35, deadline=None)
@given(
    rewards=tables(missing=True), shift=st.integers(-20, 20), scale=st.sampled_from([0.25, 1.0, 3.0, 1000.0])
)
def test_a_level_per_prompt_and_a_positive_scale_do_not_matter(kind, antithetic, rewards, shift, scale):
    level = shift * torch.arange(rewards.shape[1])
    one, two = shaped(rewards, kind, antithetic), shaped((rewards + level) * scale, kind, antithetic)
    torch.testing.assert_close(one.values, two.values, rtol=1e-4, atol=1e-5)
    assert one.no_spread == two.no_spread


@every_kind
@settings(max_examples=35, deadline=None)
@given(rewards=tables(missing=True), seed=st.integers(0, 1000))
def test_members_in_another_order_get_their_own_fitness(kind, antithetic, rewards, seed):
    pairs = torch.randperm(len(rewards) // 2, generator=torch.Generator().manual_seed(seed))
    order = (2 * pairs[:, None] + torch.arange(2)).flatten()
    if not antithetic:
        order = order[torch.randperm(len(order), generator=torch.Generator().manual_seed(seed))]
    one, two = shaped(rewards, kind, antithetic), shaped(rewards[order], kind, antithetic)
    torch.testing.assert_close(one.values[order], two.values, rtol=1e-5, atol=1e-6)
    assert one.no_spread == two.no_spread


@every_kind
@settings(max_examples=25, deadline=None)
@given(rewards=tables(missing=True), seed=st.integers(0, 1000))
def test_the_order_of_the_prompts_does_not_matter(kind, antithetic, rewards, seed):
    order = torch.randperm(rewards.shape[1], generator=torch.Generator().manual_seed(seed))
    one, two = shaped(rewards, kind, antithetic), shaped(rewards[:, order], kind, antithetic)
    torch.testing.assert_close(one.values, two.values, rtol=1e-5, atol=1e-6)


@every_kind
@settings(max_examples=35, deadline=None)
@given(rewards=tables(missing=True))
def test_it_is_finite_and_zero_exactly_where_a_member_takes_no_part(kind, antithetic, rewards):
    fitness = shaped(rewards, kind, antithetic)
    assert bool(fitness.values.isfinite().all())
    assert fitness.values.dtype == torch.float32
    assert not fitness.values[~fitness.active].any()
    valued = rewards.isfinite()
    if antithetic:
        valued = valued.view(-1, 2, rewards.shape[1]).all(dim=1).repeat_interleave(2, dim=0)
    assert torch.equal(fitness.active, valued.any(dim=1))
    assert fitness.no_spread == (not fitness.values.any()) or kind == "raw"


@every_kind
@settings(max_examples=35, deadline=None)
@given(rewards=tables())
def test_a_better_member_never_has_a_lower_fitness(kind, antithetic, rewards):
    fitness, means = shaped(rewards, kind, antithetic), rewards.double().mean(dim=1)
    compared = [(i, i + 1) for i in range(0, len(rewards), 2)] if antithetic else []
    compared += [] if kind == "pair_rms" else [(0, i) for i in range(len(rewards))]
    for i, j in compared:
        better = torch.sign(fitness.values[i] - fitness.values[j]).item()
        assert better in (0.0, np.sign((means[i] - means[j]).item()))


@every_kind
@settings(max_examples=25, deadline=None)
@given(members=st.integers(1, 6), prompts=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=5))
def test_constant_rewards_have_no_spread(kind, antithetic, members, prompts):
    fitness = shaped(torch.tensor(prompts).expand(2 * members, -1), kind, antithetic)
    assert fitness.no_spread
    assert not fitness.values.any()


@every_kind
def test_members_with_the_same_mean_are_tied_in_spite_of_rounding(kind, antithetic):
    third = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0], [0, 1.0, 0], [1.0, 0, 0], [0, 0, 1.0]])
    assert shaped(third * 0.1 + 0.7, kind, antithetic).no_spread
    assert shaped(third, kind, antithetic).no_spread


@every_kind
def test_rewards_that_are_all_missing_have_no_spread(kind, antithetic):
    fitness = shaped(torch.full((4, 3), NAN), kind, antithetic)
    assert fitness.no_spread
    assert not fitness.active.any()


@settings(max_examples=60, deadline=None)
@given(rewards=tables())
def test_ranks_are_those_of_scipy_with_ties_averaged(rewards):
    fitness, means = shape(rewards, "ranks"), rewards.double().mean(dim=1).numpy()
    expected = (rankdata(means) - 1) / (len(means) - 1) - 0.5
    if fitness.no_spread:
        assert np.ptp(means) == 0
    else:
        np.testing.assert_allclose(fitness.values, expected, atol=1e-6)
        assert fitness.values.sum().item() == pytest.approx(0, abs=1e-5)


def test_centred_is_the_stated_formula():
    rewards = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    x = (rewards - rewards.mean(dim=0)).double()
    torch.testing.assert_close(
        shape(rewards, "centred").values, (x.sum(dim=1) / (2 * x.square().mean().sqrt())).float()
    )


def test_zscore_has_mean_zero_and_unit_rms():
    values = shape(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)), "zscore").values
    assert values.mean().item() == pytest.approx(0, abs=1e-6)
    assert values.square().mean().item() == pytest.approx(1, rel=1e-5)


def test_pair_rms_differences_over_root_two_have_unit_rms():
    rewards = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    values = shape(rewards, "pair_rms", antithetic=True).values
    weights = (values[0::2] - values[1::2]) / sqrt(2)
    difference = (rewards[0::2] - rewards[1::2]).mean(dim=1)
    torch.testing.assert_close(weights, difference / difference.square().mean().sqrt())


def test_raw_is_the_mean_reward():
    rewards = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    assert shape(rewards, "raw").values.tolist() == [1.5, 4.0]


def test_raw_makes_up_for_the_level_of_a_missing_prompt():
    rewards = torch.tensor([[0.0, 10.0], [1.0, 11.0], [1.0, NAN]])
    values = shape(rewards, "raw").values
    assert values[2].item() > values[0].item()
    assert abs(values[2] - values[1]).item() < 1


@pytest.mark.parametrize("kind", ["centred", "zscore", "raw"])
def test_a_member_that_missed_a_hard_prompt_gains_nothing_by_it(kind):
    rewards = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, NAN], [0.2, 0.0]])
    values = shape(rewards, kind).values
    assert values[2].item() - values[0].item() < 0.3 * (values[0] - values[3]).item()


def test_a_pair_is_compared_on_the_prompts_that_both_have():
    rewards = torch.tensor([[1.0, NAN, 5.0], [0.0, 9.0, 5.0], [2.0, 1.0, 1.0], [2.0, 1.0, 0.0]])
    values = shape(rewards, "pair_rms", antithetic=True).values
    assert (values[0] / values[2]).item() == pytest.approx((1 / 2) / (1 / 3))


def test_a_pair_with_an_absent_member_takes_no_part():
    rewards = torch.tensor([[1.0, 2.0], [NAN, NAN], [2.0, 1.0], [1.0, 1.0]])
    for kind in KINDS:
        fitness = shape(rewards, kind, antithetic=True)
        assert fitness.active.tolist() == [False, False, True, True]
        assert fitness.values[:2].tolist() == [0.0, 0.0]


@every_free_kind
@pytest.mark.parametrize("shape_of", [(4, 1), (4, 9), (32, 3)])
def test_pure_noise_gives_a_weight_the_stated_rms(kind, antithetic, shape_of):
    squares, stated = [], None
    for seed in range(300):
        fitness = shaped(
            torch.randn(shape_of, generator=torch.Generator().manual_seed(seed)), kind, antithetic
        )
        weights = (fitness.values[0::2] - fitness.values[1::2]) / sqrt(2) if antithetic else fitness.values
        squares.append(weights.square().mean().item())
        stated = fitness.noise_rms
    assert sqrt(np.mean(squares)) == pytest.approx(stated, rel=0.08)


def test_an_unknown_kind_and_wrong_shapes_are_refused():
    with pytest.raises(ConfigError, match="known: pair_rms"):
        shape(torch.zeros(4, 2), "softmax")
    with pytest.raises(ConfigError, match="antithetic"):
        shape(torch.zeros(4, 2), "pair_rms")
    for wrong, antithetic in ((torch.zeros(4), False), (torch.zeros(4, 0), False), (torch.zeros(3, 2), True)):
        with pytest.raises(ProtocolError, match="N, P"):
            shape(wrong, "zscore", antithetic=antithetic)
