"""The mechanism of replicator search against closed forms, without a model.

Every row of the method's first gate (mass, selection, memory, diffusion, resampling), the Gaussian closure,
and the limit in which it is an evolution strategy. The last row, the convex proxy against a noisy gradient,
is benchmarks/replicator_proxy.py.
"""

from dataclasses import replace
from math import exp, expm1, sqrt

import numpy as np
import pytest
import torch
from dense_evaluation import matrices, quadratic_rewards, random_target
from scipy import stats

from evolora.adapters.noise import uniform
from evolora.search import make_method
from evolora.search.replicator_dynamics import (
    effective_size,
    offspring,
    remember,
    select,
    too_few,
    uniform_weights,
)
from evolora.search.replicator_mutation import Deviates

TEMPLATE = matrices((6, 10), (8, 5))


def search(rewards, template=TEMPLATE, **options):
    """The state after telling each row of rewards ``[T, N]``, and the metrics of each step."""
    method = make_method("replicator", population=len(rewards[0]), **options)
    state, metrics = method.init(template, 0), []
    for row in rewards:
        method.ask(state)
        state, found = method.tell(state, torch.as_tensor(row)[:, None])
        metrics.append(found)
    return state, metrics


def log_odds(state):
    first, second = state.tensor("log_weights").tolist()
    return first - second


# --- mass: the weights sum to 1 within 1e-12 at every step


@pytest.mark.parametrize("kappa", [0.0, 1.0, 50.0, 1e4])
def test_the_weights_sum_to_one_at_every_step(kappa):
    generator = torch.Generator().manual_seed(0)
    method = make_method("replicator", population=12, kappa=kappa, memory_noise=0.01)
    state = method.init(TEMPLATE, 0)
    for _ in range(60):
        method.ask(state)
        state, _ = method.tell(state, torch.randn(12, 3, generator=generator) - 5)
        assert abs(state.tensor("log_weights").exp().sum().item() - 1) <= 1e-12


# --- selection: two candidates at constant reward part at the rate kappa dt (r1 - r2), to 1e-6


@pytest.mark.parametrize("kappa", [1e-3, 0.1, 1.0, 7.0, 50.0, 1e3])
@pytest.mark.parametrize(("dt", "rewards"), [(1.0, (1.0, 0.25)), (0.05, (-2.0, -1.5))])
def test_log_odds_grow_by_the_difference_of_the_rewards(kappa, dt, rewards):
    steps = 20
    state, _ = search([rewards] * steps, kappa=kappa, dt=dt, lambda_m=1e4, diffusion=0)
    expected = kappa * dt * (rewards[0] - rewards[1])
    assert log_odds(state) / steps == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kappa", [0.1, 1.0, 7.0])
def test_log_odds_with_slow_memories_grow_by_their_closed_form(kappa):
    steps, rate, dt = 30, 0.2, 0.5
    state, _ = search([(1.0, 0.25)] * steps, kappa=kappa, dt=dt, lambda_m=rate)
    risen = sum(-expm1(-rate * dt * k) for k in range(1, steps + 1))
    assert log_odds(state) == pytest.approx(kappa * dt * 0.75 * risen, rel=1e-6)


def test_selection_of_many_is_the_softmax_of_the_summed_rewards():
    rewards = torch.randn(9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    log_weights = uniform_weights(9)
    for _ in range(7):
        log_weights = select(log_weights, rewards, 0.3)
    torch.testing.assert_close(log_weights, (7 * 0.3 * rewards).log_softmax(0), rtol=1e-12, atol=1e-12)


# --- memory: the average of a constant and of a step reward, to 1e-6


@pytest.mark.parametrize("rate", [0.01, 0.5, 3.0])
@pytest.mark.parametrize("dt", [0.1, 1.0])
def test_memories_of_a_constant_and_of_a_step_follow_their_closed_forms(rate, dt):
    before, after, steps = (3.0, -1.5), (-4.0, 0.5), 12
    state, _ = search([before] * steps, kappa=0, lambda_m=rate, dt=dt)
    level = [-expm1(-rate * dt * steps) * reward for reward in before]
    assert state.tensor("memory").tolist() == pytest.approx(level, rel=1e-6)
    state, _ = search([before] * steps + [after] * 5, kappa=0, lambda_m=rate, dt=dt)
    kept = exp(-rate * dt * 5)
    expected = [kept * old + (1 - kept) * new for old, new in zip(level, after, strict=True)]
    assert state.tensor("memory").tolist() == pytest.approx(expected, rel=1e-6)


def test_noisy_memories_diffuse_by_their_constant():
    noise, dt, steps = 0.03, 0.5, 100
    method = make_method("replicator", population=200, memory_noise=noise, kappa=0, dt=dt, lambda_m=1e4)
    state, seen = method.init(matrices((1, 1)), 0), []
    for _ in range(steps):
        method.ask(state)
        state, _ = method.tell(state, torch.zeros(200, 1))
        seen.append(state.tensor("memory"))
    assert torch.stack(seen).var().item() == pytest.approx(2 * noise * dt, rel=0.03)


# --- diffusion: the variance of a mutated coordinate is 2 D n dt, within 1 % at 200,000 samples


@pytest.mark.parametrize("diffusion", [1e-4, 3e-3, 0.1, 2.0])
def test_coordinates_diffuse_by_their_constant(diffusion):
    steps, dt = 5, 0.5
    template = matrices((250, 4))
    options = {"rank": 100, "diffusion": diffusion, "dt": dt, "spread": 0, "factors": "ab"}
    method = make_method("replicator", population=8, **options)
    first = method.ask(method.init(template, 0)).block(range(8))["layer.0.proj"]
    state, _ = search([[1.0] * 8] * steps, template, **options)
    now = method.ask(state).block(range(8))["layer.0.proj"]
    moved = now.b - first.b
    assert moved.numel() == 200_000
    assert moved.var().item() == pytest.approx(2 * diffusion * steps * dt, rel=0.01)
    assert moved.mean().item() == pytest.approx(0, abs=4 * sqrt(2 * diffusion * steps * dt / moved.numel()))
    # A's entries have a size of 1 / sqrt(d_in), and a d_in-th of the variance; 3,200 samples
    assert (now.a - first.a).var().item() == pytest.approx(2 * diffusion * steps * dt / 4, rel=0.1)


# --- resampling: N w_i offspring on average (chi-square, p > 0.01); it fires exactly below N / 3


def draws(members, rounds):
    for step in range(rounds):
        yield torch.from_numpy(uniform(members, seed=0, step=step, purpose="test"))


def test_offspring_are_drawn_in_proportion_to_the_weights():
    weights = torch.tensor([0.4, 0.0, 0.05, 0.25, 0.1, 0.2], dtype=torch.float64)
    counts = sum(offspring(weights, u).bincount(minlength=6) for u in draws(6, 2000))
    expected = 2000 * 6 * weights
    assert counts[1] == 0
    drawn = weights > 0
    assert stats.chisquare(counts[drawn].numpy(), expected[drawn].numpy()).pvalue > 0.01


@pytest.mark.parametrize("how", ["multinomial", "systematic"])
def test_the_ends_of_the_distribution_belong_to_candidates_that_have_weight(how):
    weights = torch.tensor([0.0, 0.3, 0.7, 0.0], dtype=torch.float64)
    for end in (0.0, 1 - 2.0**-53):
        assert set(offspring(weights, torch.full((4,), end, dtype=torch.float64), how).tolist()) <= {1, 2}


def test_systematic_offspring_are_right_on_average_and_never_off_by_one():
    weights = torch.tensor([0.4, 0.0, 0.05, 0.25, 0.1, 0.2], dtype=torch.float64)
    tables = torch.stack(
        [offspring(weights, u, "systematic").bincount(minlength=6) for u in draws(6, 2000)]
    ).double()
    assert bool(((tables - 6 * weights).abs() < 1).all())
    error = tables.std(0) / sqrt(2000)
    assert bool(((tables.mean(0) - 6 * weights).abs() <= 4 * error + 1e-12).all())


def test_the_search_draws_its_parents_in_proportion_to_the_weights():
    weights = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05] + [0.0] * 10, dtype=torch.float64)
    method = make_method("replicator", population=15)
    state, _ = search([[0.0] * 15])
    counts = torch.zeros(15)
    for seed in range(300):
        tensors = {**state.tensors, "log_weights": weights.log()}
        parents = method.ask(replace(state, seed=seed, tensors=tensors)).parents
        counts += torch.tensor([int(parent.split(".")[1]) for (parent,) in parents]).bincount(minlength=15)
    assert counts[5:].sum() == 0
    assert stats.chisquare(counts[:5].numpy(), (300 * 15 * weights[:5]).numpy()).pvalue > 0.01


def test_resampling_fires_exactly_below_a_third():
    quarter = torch.tensor([0.25] * 4 + [0.0] * 8, dtype=torch.float64)
    assert effective_size(quarter) == 4
    assert not too_few(quarter)  # exactly N / 3
    uneven = quarter.clone()
    uneven[0], uneven[1] = 0.25 + 1e-5, 0.25 - 1e-5
    assert too_few(uneven)
    assert not too_few(torch.full((12,), 1 / 12, dtype=torch.float64))


@pytest.mark.parametrize(("alive", "fires"), [(4, False), (3, True), (5, False)])
def test_a_search_resamples_when_fewer_than_a_third_count(alive, fires):
    method = make_method("replicator", population=12, diffusion=0)
    state, _ = search([[0.0] * 12], diffusion=0)
    log_weights = torch.tensor([0.0] * alive + [-torch.inf] * (12 - alive), dtype=torch.float64)
    tensors = {
        **state.tensors,
        "log_weights": log_weights.log_softmax(0),
        "memory": torch.arange(12.0).double(),
    }
    state = replace(state, tensors=tensors)
    population = method.ask(state)
    parents = [int(parent.split(".")[1]) for (parent,) in population.parents]
    assert (parents != list(range(12))) == fires
    after, metrics = method.tell(state, torch.zeros(12, 1))
    assert metrics["resampled"] == fires
    if fires:
        assert set(parents) <= set(range(alive))
        old = method.init(TEMPLATE, 0)
        before = method.ask(old).block(parents)
        for name, stack in population.block(range(12)).items():
            assert torch.equal(stack.b, before[name].b)  # z is copied
        alpha = -expm1(-method.lambda_m)
        kept = torch.tensor(parents, dtype=torch.float64) * (1 - alpha)  # and so is the memory
        torch.testing.assert_close(after.tensor("memory"), kept)
        torch.testing.assert_close(after.tensor("ancestors"), torch.tensor(parents))


# --- the Gaussian closure: d mu = kappa S grad R,  d S = -kappa S H S + 2 D I

HESSIAN = torch.tensor([[2.5, 1.5], [1.5, 2.5]], dtype=torch.float64)  # eigenvalues 1 and 4
GOAL = torch.tensor([0.3, -0.2], dtype=torch.float64)


def reward(z):
    return -((z - GOAL) @ HESSIAN * (z - GOAL)).sum(1) / 2


def gaussian(count, mean, covariance, seed=0):
    """A sample with exactly this mean and covariance, and no odd central moments."""
    half = torch.randn(count // 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    half = half @ torch.linalg.inv(torch.linalg.cholesky(half.T @ half / len(half))).T
    return mean + torch.cat([half, -half]) @ torch.linalg.cholesky(covariance).T


def moments(z, log_weights):
    weights = log_weights.exp()
    mean = weights @ z
    return mean, (z - mean).T @ ((z - mean) * weights[:, None])


def root(matrix, power=0.5):
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values**power @ vectors.T


def test_one_step_of_selection_moves_mean_and_covariance_as_the_closure_says():
    mean = torch.tensor([0.5, 0.4], dtype=torch.float64)
    covariance = torch.tensor([[0.02, 0.008], [0.008, 0.03]], dtype=torch.float64)
    z, kappa, dt = gaussian(400_000, mean, covariance), 3.0, 1e-3
    memory = remember(torch.zeros(len(z), dtype=torch.float64), reward(z), uniform_weights(len(z)), 1e3)
    after_mean, after = moments(z, select(uniform_weights(len(z)), memory, kappa * dt))
    slope = -HESSIAN @ (mean - GOAL)
    torch.testing.assert_close((after_mean - mean) / dt, kappa * covariance @ slope, rtol=2e-3, atol=0)
    shrinks = -kappa * covariance @ HESSIAN @ covariance
    torch.testing.assert_close((after - covariance) / dt, shrinks, rtol=0.02, atol=0)


@pytest.fixture(scope="module")
def stationary():
    """A long run of 20,000 candidates with exact rewards and no memory: means and covariances by step."""
    count, kappa, diffusion, dt = 20_000, 10.0, 0.05, 0.01
    generator = torch.Generator().manual_seed(3)
    expected = sqrt(2 * diffusion / kappa) * root(HESSIAN, -0.5)
    z = gaussian(count, GOAL + torch.tensor([0.4, 0.1], dtype=torch.float64), expected)
    log_weights, memory = uniform_weights(count), torch.zeros(count, dtype=torch.float64)
    trail = []
    for _ in range(1000):
        memory = remember(memory, reward(z), log_weights, 1e3)
        log_weights = select(log_weights, memory, kappa * dt)
        trail.append(moments(z, log_weights))
        z = z + sqrt(2 * diffusion * dt) * torch.randn(count, 2, dtype=torch.float64, generator=generator)
        if too_few(log_weights.exp()):
            drawn = torch.rand(count, dtype=torch.float64, generator=generator)
            parents = offspring(log_weights.exp(), drawn)
            z, memory, log_weights = z[parents], memory[parents], uniform_weights(count)
    return kappa, diffusion, dt, trail


def test_the_population_settles_at_the_width_of_the_closure(stationary):
    kappa, diffusion, _, trail = stationary
    settled = torch.stack([covariance for _, covariance in trail[300:]]).mean(0)
    expected = sqrt(2 * diffusion / kappa) * root(HESSIAN, -0.5)
    torch.testing.assert_close(settled, expected, rtol=0.04, atol=0)  # sampling, and a step of finite length


def test_the_loss_settles_at_the_floor_of_the_closure(stationary):
    kappa, diffusion, _, trail = stationary
    losses = [
        ((mean - GOAL) @ HESSIAN @ (mean - GOAL) + (HESSIAN * covariance).sum()) / 2
        for mean, covariance in trail[300:]
    ]
    floor = sqrt(2 * diffusion / kappa) * root(HESSIAN).trace().item() / 2
    assert np.mean(losses) == pytest.approx(floor, rel=0.04)


def test_the_mean_arrives_at_the_rate_of_the_closure(stationary):
    kappa, diffusion, dt, trail = stationary
    steps = 40
    for value, direction in ((1.0, [1, -1]), (4.0, [1, 1])):
        along = torch.tensor(direction, dtype=torch.float64) / sqrt(2)
        left = ((trail[steps][0] - GOAL) @ along) / ((trail[0][0] - GOAL) @ along)
        rate = sqrt(2 * diffusion * kappa * value)
        assert left.item() == pytest.approx(exp(-rate * dt * steps), rel=0.04)


# --- the limit in which it is an evolution strategy


def shift_and_estimate(kappa, template=TEMPLATE, population=16, rank=8, spread=0.05, lambda_m=2.0):
    """How far one step from equal weights moves the weighted mean, and how far the ES estimate says."""
    target = random_target(template, 2, 0.1)
    options = {"spread": spread, "kappa": kappa, "lambda_m": lambda_m, "rank": rank}
    method = make_method("replicator", population=population, **options)
    state = method.init(template, 0)
    crowd = method.ask(state)
    rewards = quadratic_rewards(crowd, target)
    z = torch.cat([stack.b.flatten(1) for stack in crowd.block(range(population)).values()], 1).double()
    after, _ = method.tell(state, rewards)
    shift = (after.tensor("log_weights").exp() - 1 / population) @ z
    fitness = rewards.double().mean(1)
    # B starts at 0: a candidate's noise over spread is z / spread
    gradient = (fitness - fitness.mean()) @ z / (population * spread**2)
    return shift, -expm1(-lambda_m) * kappa * spread**2 * gradient


def test_one_step_moves_the_mean_by_the_gradient_estimate_of_an_evolution_strategy():
    errors = []
    for kappa in (1e-2, 5e-3, 2.5e-3):
        shift, expected = shift_and_estimate(kappa)
        errors.append(((shift - expected).norm() / expected.norm()).item())
    assert errors[0] < 0.01
    # what is left is of first order in kappa
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.02)
    assert errors[1] / errors[2] == pytest.approx(2, rel=0.02)


def test_that_estimate_points_along_the_gradient_of_the_mean_reward():
    template, rank = matrices((6, 10)), 2
    shift, _ = shift_and_estimate(1e-3, template, population=1000, rank=rank)
    a = make_method("replicator", rank=rank).init(template, 0).tensor("layer.0.proj.lora_A")
    slope = 2 * random_target(template, 2, 0.1)["layer.0.proj"] @ a.T  # at B = 0, of the B that was searched
    cosine = torch.nn.functional.cosine_similarity(shift, slope.flatten().double(), dim=0)
    assert cosine > 0.97  # sampling: about sqrt(N / (N + d)), d = 12


def test_recombination_at_each_step_is_an_evolution_strategy_with_softmax_weights():
    kappa, diffusion, population = 3.0, 0.01, 16
    options = {"recombine": "step", "kappa": kappa, "diffusion": diffusion, "lambda_m": 1e3}
    method = make_method("replicator", population=population, **options)
    state = method.init(TEMPLATE, 0)
    mean = {name: torch.zeros(spec.d_out, method.rank).double() for name, spec in TEMPLATE.items()}
    for step in range(4):
        crowd, size = method.ask(state), sqrt(2 * diffusion) if step else method.spread
        purpose = "replicator/mutation" if step else "replicator/spread"
        for name, stack in crowd.block(range(population)).items():
            noise = Deviates(0, step, purpose, population).of(f"{name}.lora_B", tuple(stack.b.shape[1:]))
            torch.testing.assert_close(stack.b.double(), mean[name] + size * noise, rtol=1e-5, atol=1e-6)
        rewards = quadratic_rewards(crowd, random_target(TEMPLATE, 2, 0.1))
        state, _ = method.tell(state, rewards)
        weights = (kappa * rewards.double().mean(1)).softmax(0)
        for name, stack in crowd.block(range(population)).items():
            mean[name] = (weights[:, None, None] * stack.b.double()).sum(0)
