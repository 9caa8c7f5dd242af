"""Full-rank strategies against dense searches written in numpy, and what their noise must be."""

import copy

import numpy as np
import pytest
import torch
from dense_evaluation import dense_members, matrices
from torch.utils.flop_counter import FlopCounterMode

from evolora.adapters import DENSE
from evolora.adapters.noise import normal
from evolora.engine import Base, Engine
from evolora.search import make_method
from evolora.search.perturbation import FullRank

TEMPLATE = matrices((5, 7), (4, 3))


def noise(name, step, direction, seed=0):
    spec = TEMPLATE[name]
    out = np.empty((spec.d_out, spec.d_in), np.float32)
    return normal(out, seed=seed, step=step, pair=direction, tensor=f"{name}/e").astype(np.float64)


def rewards_of(deltas):
    """A smooth reward of dense deltas, one column a prompt."""
    first, second = (np.asarray(deltas[name], np.float64) for name in TEMPLATE)
    one = -np.square(first - 0.1).sum((1, 2)) + 0.3 * second.sum((1, 2))
    return np.stack([one, one + 0.5 * first[:, 0, 0], 2 * one], 1)


def published(steps, sigma, alpha, members):
    """Evolution Strategies at Scale: theta <- theta + alpha / N sum_i z_i eps_i, z the z-scored reward."""
    theta = {name: np.zeros((spec.d_out, spec.d_in)) for name, spec in TEMPLATE.items()}
    for step in range(steps):
        eps = {name: np.stack([noise(name, step, i) for i in range(members)]) for name in TEMPLATE}
        reward = rewards_of({name: theta[name] + sigma * eps[name] for name in TEMPLATE}).mean(1)
        z = (reward - reward.mean()) / reward.std()
        for name in TEMPLATE:
            theta[name] = theta[name] + alpha / members * np.einsum("i,iab->ab", z, eps[name])
    return theta


def test_it_is_the_published_algorithm():
    members, sigma, lr = 30, 0.05, 0.2
    method = make_method("openai_es", sigma=sigma, lr=lr)
    state = method.init(TEMPLATE, 0)
    for step in range(4):
        dense = {name: value.numpy() for name, value in dense_members(method.ask(state)).items()}
        state, _ = method.tell(state, torch.tensor(rewards_of(dense)), (step + 1) / 4)
    wanted = published(4, sigma, alpha=lr * sigma * np.sqrt(members), members=members)
    for name, mean in dense_members(method.mean(state)).items():
        np.testing.assert_allclose(mean[0].numpy(), wanted[name], rtol=1e-3, atol=1e-5)


def test_the_defaults_are_the_published_ones():
    method = make_method("openai_es")
    assert (method.population, method.sigma, method.antithetic, method.shaping) == (
        30,
        0.001,
        False,
        "zscore",
    )
    assert method.lr * method.sigma * np.sqrt(method.population) == pytest.approx(0.0005, rel=1e-3)
    assert method.decay == "constant"


def test_full_rank_noise_has_full_rank_unit_variance_and_its_own_stream():
    found = FullRank(0, 3).dense("m", (40, 60), [0, 1])
    assert found.std().item() == pytest.approx(1, abs=0.03)
    assert all(torch.linalg.matrix_rank(one) == 40 for one in found)
    assert abs(torch.corrcoef(found.flatten(1))[0, 1].item()) < 0.06
    other = FullRank(0, 4).dense("m", (40, 60), [0])[0]
    assert abs(torch.corrcoef(torch.stack([found[0].flatten(), other.flatten()]))[0, 1].item()) < 0.06
    assert torch.equal(found[1], FullRank(0, 3).dense("m", (40, 60), [1])[0])


@pytest.mark.parametrize("antithetic", [False, True])
def test_members_with_dense_deltas_score_as_weights_that_hold_them(make_tiny, char_tokenizer, antithetic):
    """On the engine: a population of dense deltas equals copies of the model with W + D_i, one by one."""
    for architecture in ("llama", "gpt2", "opt", "neox", "qwen3"):
        base = Base(make_tiny(architecture), char_tokenizer, architecture)
        specs = base.modules("all-linear")
        method = make_method(
            "openai_es", population=4, sigma=0.02, antithetic=antithetic, shaping="zscore", lr=0.5
        )
        state = method.init(specs, 0)
        method.ask(state)
        state, _ = method.tell(state, torch.tensor([[1.0], [2.0], [0.0], [5.0]]))
        population = method.ask(state)
        assert set(population.ranks.values()) == {DENSE}
        prompts, answers = ["abc", "hello w"], ["d", "orld"]
        found = Engine(base).score(population, prompts, answers).log_likelihood
        for i, deltas in enumerate(_single(population)):
            model = copy.deepcopy(base.model)
            for name, delta in deltas.items():
                weight = model.get_submodule(name).weight
                conv = type(model.get_submodule(name)).__name__ == "Conv1D"
                weight.data += delta.T if conv else delta
            alone = Engine(Base(model, char_tokenizer, "moved")).score(None, prompts, answers)
            torch.testing.assert_close(found[i], alone.log_likelihood[0], rtol=1e-4, atol=1e-4)


def _single(population):
    dense = dense_members(population)
    return [{name: delta[i] for name, delta in dense.items()} for i in range(len(population))]


def test_dense_members_are_counted_as_torch_counts_them(make_tiny, char_tokenizer):
    base = Base(make_tiny("llama"), char_tokenizer, "tiny")
    engine = Engine(base)
    method = make_method("openai_es", population=4, sigma=0.02)
    population = method.ask(method.init(base.modules("mlp"), 0))
    engine.score(population, ["abcdef"], ["g"])  # probes and prepares
    before = engine.ledger.forward_flops
    in_place = {torch.ops.aten.baddbmm_: lambda _out, a, b, *_, **__: 2 * a[0] * a[1] * a[2] * b[2]}
    with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
        engine.score(population, ["abcdef"], ["g"])
    assert engine.ledger.forward_flops - before == pytest.approx(counter.get_total_flops(), rel=0.02)
