"""The sigma pre-flight against a quadratic whose signal, harm and best step are known."""

import math

import pytest
import torch

from evolora.diagnostics.sigma import recommend, rung
from evolora.errors import ConfigError


def quadratic(sigma, gradient, hessian, noise, pairs=400, prompts=64, seed=0):
    """Rewards of antithetic pairs: sigma g.e - sigma^2 h |e|^2 / 2 in 16 dimensions, each prompt with its own
    luck in the slope."""
    draw = torch.Generator().manual_seed(seed)
    e = torch.randn(pairs, 16, dtype=torch.float64, generator=draw)
    slopes = gradient / 4 * torch.ones(16, dtype=torch.float64)
    own = noise * torch.randn(16, prompts, dtype=torch.float64, generator=draw)
    first = sigma * (e @ (slopes[:, None] + own))
    second = -(sigma**2) * hessian * e.square().sum(1, keepdim=True) / 2
    rewards = torch.stack([first + second, -first + second], 1).view(2 * pairs, prompts)
    return torch.zeros(prompts, dtype=torch.float64), rewards


@pytest.mark.parametrize("sigma", [0.01, 0.1])
def test_a_rung_measures_signal_and_harm(sigma):
    centre, rewards = quadratic(sigma, gradient=2.0, hessian=3.0, noise=0.0)
    found = rung(sigma, centre, rewards)
    assert found.spread == pytest.approx(sigma * 2.0, rel=0.1)
    assert found.signal == pytest.approx(1.0)
    assert found.harm == pytest.approx(sigma**2 * 16 * 3.0 / 2, rel=0.1)
    assert found.tied == 0


def test_the_best_step_is_the_maximum_of_the_quadratic():
    sigma, pairs = 0.05, 400
    found = rung(sigma, *quadratic(sigma, gradient=0.02, hessian=3.0, noise=0.0, pairs=pairs))
    signal = found.signal * found.spread**2

    def gains(lr):
        return lr * math.sqrt(pairs) * signal / found.spread - lr**2 * found.harm

    assert found.gain == pytest.approx(gains(found.lr))
    assert found.gain > max(gains(0.9 * found.lr), gains(1.1 * found.lr))
    assert found.lr < 2


def test_what_does_not_repeat_on_other_prompts_is_no_signal():
    centre, rewards = quadratic(0.05, gradient=0.0, hessian=1.0, noise=1.0)
    assert rung(0.05, centre, rewards).signal < 0.2
    centre, rewards = quadratic(0.05, gradient=1.0, hessian=1.0, noise=1.0)
    assert rung(0.05, centre, rewards).signal > 0.7


def test_ties_and_missing_values():
    rewards = torch.zeros(4, 6)
    rewards[0, 1] = 1.0
    rewards[3, 5] = float("nan")
    found = rung(0.1, torch.zeros(6), rewards)
    assert found.tied == 0.5
    assert found.spread == pytest.approx(math.sqrt((0.1**2) / 2))
    with pytest.raises(ConfigError, match="judged"):
        rung(0.1, torch.zeros(6), torch.full((4, 6), float("nan")))


def test_the_sigma_whose_step_gains_most_is_recommended_with_its_reason():
    rungs = [rung(s, *quadratic(s, gradient=1.0, hessian=1.0, noise=0.5)) for s in (0.001, 0.03, 1.0)]
    ladder = recommend(rungs)
    best = max(rungs, key=lambda r: r.gain)
    assert (ladder.sigma, ladder.lr) == (best.sigma, best.lr)
    assert f"sigma {best.sigma:g}" in ladder.reason


def test_no_recommendation_without_signal():
    flat = rung(0.1, torch.zeros(4), torch.zeros(8, 4))
    assert recommend([flat]).sigma is None
    assert "no sigma moves the reward" in recommend([flat]).reason
