"""On rewards that are pure noise a strategy drifts as far as the random walk says."""

from math import sqrt

import numpy as np
import pytest
import torch

from evolora.adapters import ModuleSpec
from evolora.adapters.noise import normal
from evolora.diagnostics.deltas import deltas_of, dense
from evolora.diagnostics.walk import against_walk, alpha_walk_length, walk_length
from evolora.search import Eggroll
from evolora.search.openai_es import OpenAIES

TEMPLATE = {"a": ModuleSpec(48, 64), "b": ModuleSpec(64, 32), "c": ModuleSpec(32, 96)}
WEIGHTS = sum(spec.d_out * spec.d_in for spec in TEMPLATE.values())
STEPS, PROMPTS = 20, 8


def drift(method, seed=0):
    """T steps on counted noise; the last step's metrics, the state, and the RMS of each step."""
    state, rms, metrics = method.init(TEMPLATE, seed), [], {}
    for step in range(STEPS):
        method.ask(state)
        rewards = normal(
            np.empty((method.population, PROMPTS), np.float32), seed=seed, step=step, purpose="rewards"
        )
        state, metrics = method.tell(state, torch.from_numpy(rewards), (step + 1) / STEPS)
        rms.append(metrics["lr"] * metrics["sigma"])
    return metrics, state, rms


CASES = [
    *[Eggroll(population=n) for n in (4, 16, 64)],
    *[Eggroll(population=16, rank=r) for r in (2, 4, 16)],
    *[Eggroll(population=16, shaping=s) for s in ("centred", "zscore", "ranks")],
    Eggroll(population=15, antithetic=False, shaping="zscore"),
    Eggroll(population=15, antithetic=False, shaping="ranks", rank=4),
    Eggroll(population=16, decay="constant"),
    Eggroll(population=16, decay_sigma=True),
    *[OpenAIES(population=n) for n in (6, 30)],
    OpenAIES(population=16, antithetic=True, shaping="pair_rms"),
    OpenAIES(population=16, shaping="centred", antithetic=True),
]


@pytest.mark.parametrize("method", CASES, ids=lambda m: f"{m.name}-{m.population}-{m.shaping}-{m.decay}")
def test_the_drift_on_pure_noise_is_the_walk_within_a_tenth(method):
    metrics, state, rms = drift(method)
    length = walk_length(rms, WEIGHTS)
    found = against_walk(deltas_of(method.mean(state)), length)
    assert found.ratio == pytest.approx(1, abs=0.1)
    assert all(ratio == pytest.approx(1, abs=0.15) for ratio in found.modules.values())
    assert metrics["walk_ratio"] == pytest.approx(found.ratio, rel=1e-5)
    assert sqrt(state.numbers["walk"]) == pytest.approx(length, rel=1e-9)


def test_in_the_terms_of_the_source_it_is_alpha_sqrt_of_t_d_over_n():
    method = OpenAIES()
    alpha = method.lr * method.sigma * sqrt(method.population)
    _, state, rms = drift(method)
    length = alpha_walk_length(alpha, STEPS, WEIGHTS, method.population)
    assert length == pytest.approx(walk_length(rms, WEIGHTS), rel=1e-9)
    assert against_walk(deltas_of(method.mean(state)), length).ratio == pytest.approx(1, abs=0.1)


def test_steps_that_agree_go_further_and_the_modules_square_to_the_whole(draw):
    specs = {"a": ModuleSpec(4, 6), "b": ModuleSpec(8, 2)}
    slope = {name: draw(spec.d_out, spec.d_in, name=name) for name, spec in specs.items()}
    method = Eggroll(population=16, decay="constant", shaping="zscore", antithetic=False)
    state = method.init(specs, 0)
    for _ in range(STEPS):
        population = method.ask(state)
        members = [dense(deltas_of(population, i)) for i in range(16)]
        rewards = [[sum((slope[n] * delta[n]).sum().item() for n in specs)] for delta in members]
        state, metrics = method.tell(state, torch.tensor(rewards))
    found = against_walk(deltas_of(method.mean(state)), walk_length([method.lr * method.sigma] * STEPS, 40))
    assert found.ratio > 1.5
    squares = [found.modules[n] ** 2 * spec.d_out * spec.d_in / 40 for n, spec in specs.items()]
    assert sqrt(sum(squares)) == pytest.approx(found.ratio, rel=1e-6)
    assert found.norm == pytest.approx(metrics["delta_norm"], rel=1e-5)
