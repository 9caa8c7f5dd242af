from math import sqrt

import numpy as np
import pytest
import torch
from dense_evaluation import dense_members, matrices, quadratic_rewards, random_target

from evolora.adapters import Adapter, Factors, ModuleSpec
from evolora.adapters.noise import normal
from evolora.errors import ConfigError
from evolora.search import Eggroll

TEMPLATE = matrices((12, 20), (16, 9))
WIDE = matrices((150, 200), (120, 80))


def tell(method, state, rewards, progress=0.0):
    method.ask(state)
    return method.tell(state, rewards, progress)


def noise_rewards(method, step=0, prompts=4):
    return torch.randn(method.population, prompts, generator=torch.Generator().manual_seed(1000 + step))


def step_rms(method, steps=1):
    """The RMS of the mean's entries after one step of pure noise, over many first steps."""
    squares = []
    for seed in range(steps):
        state, _ = tell(method, method.init(WIDE, seed), noise_rewards(method, seed))
        squares += [delta.square().mean().item() for delta in method.mean(state).shared.values()]
    return sqrt(np.mean(squares))


def numpy_direction(seed, step, pair, name, spec, rank):
    a, b = np.empty((rank, spec.d_in), np.float32), np.empty((spec.d_out, rank), np.float32)
    normal(a, seed=seed, step=step, pair=pair, tensor=f"{name}/a")
    normal(b, seed=seed, step=step, pair=pair, tensor=f"{name}/b")
    return b.astype(float) @ a.astype(float) / sqrt(rank)


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("antithetic", [True, False])
def test_it_agrees_with_a_dense_evolution_strategy_in_numpy(rank, antithetic):
    shaping = "pair_rms" if antithetic else "zscore"
    method = Eggroll(
        sigma=0.05, lr=0.3, rank=rank, population=8, antithetic=antithetic, shaping=shaping, weight_decay=0.1
    )
    target = random_target(TEMPLATE, 2, 0.1)
    mean = {name: np.zeros((spec.d_out, spec.d_in)) for name, spec in TEMPLATE.items()}
    state, steps = method.init(TEMPLATE, 11), 5
    for step in range(steps):
        directions = {
            name: [numpy_direction(11, step, j, name, spec, rank) for j in range(4 if antithetic else 8)]
            for name, spec in TEMPLATE.items()
        }
        score = []
        for member in range(8):
            sign, j = (1 - 2 * (member % 2), member // 2) if antithetic else (1, member)
            deltas = {name: mean[name] + sign * 0.05 * directions[name][j] for name in mean}
            score.append(-sum(((deltas[name] - target[name].numpy()) ** 2).sum() for name in mean))
        score = np.array(score)
        if antithetic:
            weights = score[0::2] - score[1::2]
            weights = weights / np.sqrt(np.mean(weights**2))
        else:
            weights = (score - score.mean()) / score.std()
        lr = 0.3 * (1 - step / steps)
        for name in mean:
            estimate = sum(w * e for w, e in zip(weights, directions[name], strict=True)) / sqrt(len(weights))
            mean[name] = (1 - lr * 0.1) * mean[name] + lr * 0.05 * estimate
        state, _ = tell(method, state, quadratic_rewards(method.ask(state), target), (step + 1) / steps)
    for name, delta in method.mean(state).shared.items():
        np.testing.assert_allclose(delta.numpy(), mean[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 4, 8])
@pytest.mark.parametrize("population", [4, 16, 64])
def test_under_pure_noise_the_rms_of_a_step_is_lr_times_sigma(population, rank):
    method = Eggroll(sigma=0.04, lr=0.5, population=population, rank=rank)
    assert step_rms(method, steps=4) == pytest.approx(0.5 * 0.04, rel=0.05)


@pytest.mark.parametrize(
    ("shaping", "antithetic"),
    [("pair_rms", True)] + [(kind, two) for kind in ("centred", "zscore", "ranks") for two in (True, False)],
)
@pytest.mark.parametrize("population", [4, 16])
def test_the_rms_of_a_step_does_not_depend_on_the_shaping(shaping, antithetic, population):
    method = Eggroll(sigma=0.04, lr=0.5, population=population, shaping=shaping, antithetic=antithetic)
    assert step_rms(method, steps=60) == pytest.approx(0.5 * 0.04, rel=0.12)


def test_missing_members_leave_the_rms_of_a_step_as_it_is():
    method = Eggroll(sigma=0.04, lr=0.5, population=16, rank=4)
    rewards = noise_rewards(method)
    rewards[[0, 3, 6, 7]] = float("nan")
    _, metrics = tell(method, method.init(WIDE, 0), rewards)
    assert metrics["failed"] == 4
    assert metrics["update_norm"] == pytest.approx(0.5 * 0.04 * sqrt(150 * 200 + 120 * 80), rel=0.05)


def test_pure_noise_makes_the_mean_a_random_walk():
    method = Eggroll(sigma=0.02, lr=0.5, population=16, rank=8, decay="constant")
    state, size = method.init(WIDE, 0), sum(spec.d_out * spec.d_in for spec in WIDE.values())
    for step in range(16):
        state, metrics = tell(method, state, noise_rewards(method, step), (step + 1) / 16)
        if step in (0, 3, 15):
            assert metrics["delta_norm"] == pytest.approx(0.5 * 0.02 * sqrt((step + 1) * size), rel=0.06)
            assert metrics["walk_ratio"] == pytest.approx(1, rel=0.06)


def test_a_signal_moves_further_than_the_random_walk():
    method, target = Eggroll(sigma=0.02, lr=0.1, decay="constant"), random_target(TEMPLATE, 1, 1.0)
    state = method.init(TEMPLATE, 0)
    for _ in range(40):
        state, metrics = tell(method, state, quadratic_rewards(method.ask(state), target))
    assert metrics["walk_ratio"] > 1.3


def test_the_walk_ratio_is_left_out_where_the_search_did_not_start_at_the_base():
    method, start = Eggroll(), Adapter({"layer.0.proj": Factors(torch.ones(1, 20), torch.ones(12, 1))})
    _, metrics = tell(method, method.init(TEMPLATE, 0, start), noise_rewards(method))
    assert "walk_ratio" not in metrics


@pytest.mark.parametrize(
    "options",
    [{"shaping": "raw"}, {"weight_decay": 0.1}, {"optimiser": "adam"}, {"space": "factors"}],
    ids=str,
)
def test_the_walk_ratio_is_left_out_where_its_steps_have_no_known_size(options):
    method = Eggroll(**options)
    _, metrics = tell(method, method.init(TEMPLATE, 0), noise_rewards(method))
    assert metrics["update_norm"] > 0
    assert "walk_ratio" not in metrics


def test_the_reported_norms_are_those_of_the_mean():
    for options in ({}, {"optimiser": "adam"}, {"space": "factors", "factors": "ab"}):
        method = Eggroll(**options)
        state, _ = tell(method, method.init(TEMPLATE, 0), noise_rewards(method))
        state, metrics = tell(method, state, noise_rewards(method, 1))
        mean = dense_members(method.mean(state))
        norm = sqrt(sum(delta.square().sum().item() for delta in mean.values()))
        assert metrics["delta_norm"] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "lr", "sigma"),
    [
        ({}, [0.1, 0.05, 0.0], [0.02, 0.02, 0.02]),
        ({"decay_sigma": True}, [0.1, 0.05, 0.0], [0.02, 0.01, 0.0]),
        ({"decay": "constant", "decay_sigma": True}, [0.1, 0.1, 0.1], [0.02, 0.02, 0.02]),
    ],
)
def test_step_and_perturbation_decay_by_the_recorded_progress(options, lr, sigma):
    method = Eggroll(sigma=0.02, lr=0.1, **options)
    state, name = method.init(TEMPLATE, 0), "layer.0.proj"
    for step, progress in enumerate((0.5, 1.0, 1.0)):
        stack = method.ask(state).block([0, 1])[name]
        assert stack.coefficient[0].item() == pytest.approx(sigma[step])
        state, metrics = method.tell(state, noise_rewards(method, step), progress)
        assert (metrics["lr"], metrics["sigma"]) == (pytest.approx(lr[step]), pytest.approx(sigma[step]))
        assert state.progress == progress


def test_weight_decay_pulls_towards_the_base():
    loose, tight = (Eggroll(lr=0.5, decay="constant", weight_decay=decay) for decay in (0.0, 0.5))
    norms = []
    for method in (loose, tight):
        state = method.init(TEMPLATE, 0)
        for step in range(30):
            state, metrics = tell(method, state, noise_rewards(method, step))
        norms.append(metrics["delta_norm"])
    assert norms[1] < 0.7 * norms[0]


def test_one_sided_frozen_a_stays_frozen_in_the_search_on_b():
    method = Eggroll(space="factors", factors="b", export_rank=3)
    state = method.init(TEMPLATE, 0)
    before = {name: factors.a.clone() for name, factors in method.adapter(state).modules.items()}
    state, _ = tell(method, state, noise_rewards(method))
    after = method.adapter(state).modules
    assert all(torch.equal(after[name].a, a) for name, a in before.items())
    assert all(after[name].b.any() for name in before)


def test_the_exported_rank_and_its_error_per_module_are_stated():
    method = Eggroll(rank=2, population=8, export_rank=4)
    state, _ = tell(method, method.init(TEMPLATE, 0), noise_rewards(method))
    adapter, mean = method.adapter(state), method.mean(state).shared
    assert adapter.rank == 4
    for name, error in adapter.provenance["truncation"].items():
        left = torch.linalg.svdvals(mean[name].double())[4:].norm() / mean[name].norm()
        assert error == pytest.approx(left.item(), rel=1e-4)
    assert method.adapter(state, rank=8).provenance["truncation_error"] < 1e-6
    assert adapter.provenance["sigma"] == method.sigma
    assert adapter.provenance["steps"] == 1


def test_an_embedding_keeps_its_kind():
    template = {"embed": ModuleSpec(6, 30, "embedding")}
    for space in ("weights", "factors"):
        method = Eggroll(space=space, export_rank=2)
        state = method.init(template, 0)
        assert method.ask(state).block([0, 1])["embed"].kind == "embedding"
        assert method.adapter(state).modules["embed"].kind == "embedding"
        assert method.mean(state).block([0])["embed"].kind == "embedding"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"population": 7}, "population of 7"),
        ({"antithetic": False}, "pair_rms"),
        ({"lr": 2.0, "weight_decay": 0.5}, "weight_decay"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        Eggroll(**options)


@pytest.mark.parametrize("options", [{}, {"space": "factors", "export_rank": 3}])
def test_anchored_decay_pulls_to_the_start_and_plain_decay_to_the_base(options):
    start = Adapter(
        {
            name: Factors(torch.ones(2, spec.d_in), torch.ones(spec.d_out, 2))
            for name, spec in TEMPLATE.items()
        }
    )
    ends = {}
    for anchor in ("base", "start"):
        method = Eggroll(
            population=4, sigma=0.3, lr=0.5, weight_decay=0.4, anchor=anchor, decay="constant", **options
        )
        state = method.init(TEMPLATE, 0, start)
        method.ask(state)
        state, _ = method.tell(state, torch.tensor([[1.0], [0.0], [0.0], [2.0]]))
        moved = method.mean(state)
        method = method.model_copy(update={"sigma": 0.0})  # nothing but the pull from here
        for _ in range(60):
            method.ask(state)
            state, _ = method.tell(state, torch.tensor([[1.0], [0.0], [0.0], [2.0]]))
        ends[anchor] = {name: delta[0] for name, delta in dense_members(method.mean(state)).items()}
        assert any(
            (delta[0] - ends[anchor][name]).abs().max() > 0.05 for name, delta in dense_members(moved).items()
        )
    for name, factors in start.modules.items():
        torch.testing.assert_close(ends["start"][name], factors.delta(), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ends["base"][name], torch.zeros_like(factors.delta()), atol=1e-3, rtol=0)
