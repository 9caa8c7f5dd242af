"""MeZO against its formula."""

import pytest
import torch
from dense_evaluation import dense_members, matrices

from evolora.search import make_method
from evolora.search.perturbation import FullRank
from evolora.search.perturbed import factor_names

TEMPLATE = matrices((5, 7), (4, 3))


@pytest.mark.parametrize("sigma", [1e-3, 0.1])
def test_a_step_is_the_two_point_estimate_times_lr(sigma):
    method = make_method("mezo", sigma=sigma, lr=0.3)
    state = method.init(TEMPLATE, 5)
    members = dense_members(method.ask(state))
    noise = {name: FullRank(5, 0).dense(name, (s.d_out, s.d_in), [0])[0] for name, s in TEMPLATE.items()}
    for name, z in noise.items():
        torch.testing.assert_close(members[name][0], sigma * z)
        torch.testing.assert_close(members[name][1], -sigma * z)
    rewards = torch.tensor([[1.0, 3.0, float("nan")], [0.5, 2.0, 9.0]])
    after, metrics = method.tell(state, rewards, 0.5)
    slope = (0.5 + 1.0) / 2 / (2 * sigma)
    assert metrics["slope"] == pytest.approx(slope)
    for name, mean in dense_members(method.mean(after)).items():
        torch.testing.assert_close(mean[0], 0.3 * slope * noise[name])


def test_it_estimates_the_gradient_of_a_linear_reward_without_bias():
    draw = torch.Generator().manual_seed(0)
    gradient = {name: torch.randn(s.d_out, s.d_in, generator=draw) for name, s in TEMPLATE.items()}
    method = make_method("mezo", sigma=0.1, lr=1.0)
    total = {name: torch.zeros_like(g) for name, g in gradient.items()}
    count = 4000
    for seed in range(count):
        state = method.init(TEMPLATE, seed)
        members = dense_members(method.ask(state))
        rewards = sum((members[name] * g).sum((1, 2)) for name, g in gradient.items())[:, None]
        after, _ = method.tell(state, rewards)
        for name in total:
            total[name] += after.tensor(name) / count
    error = sum((total[n] - g).square().sum() for n, g in gradient.items()).sqrt()
    size = sum(g.square().sum() for g in gradient.values()).sqrt()
    dimensions = sum(g.numel() for g in gradient.values())
    # E|estimate - g|^2 = (d + 1) |g|^2 / count
    assert error / size == pytest.approx(((dimensions + 1) / count) ** 0.5, rel=0.25)


def test_on_factors_both_sides_are_perturbed_from_pefts_initialisation():
    method = make_method("mezo", space="factors", rank=2, sigma=0.01, lr=0.1)
    state = method.init(TEMPLATE, 0)
    name = next(iter(TEMPLATE))
    key_a, key_b = factor_names(name)
    assert not state.tensor(key_b).any()
    assert state.tensor(key_a).abs().max() <= 1 / TEMPLATE[name].d_in ** 0.5
    stack = method.ask(state).block([0, 1])[name]
    torch.testing.assert_close((stack.a[0] + stack.a[1]) / 2, state.tensor(key_a))
    assert (stack.a[0] - stack.a[1]).std().item() == pytest.approx(0.02, rel=0.6)
    method.ask(state)
    after, _ = method.tell(state, torch.tensor([[1.0], [0.0]]))
    assert all(not torch.equal(after.tensor(key), state.tensor(key)) for key in (key_a, key_b))
