import copy
import sys
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from dense_evaluation import dense_members, distance, matrices, quadratic_rewards
from peft import PeftModel

from evolora.adapters import Adapter, Factors
from evolora.adapters.noise import normal
from evolora.engine import Base, Engine
from evolora.engine.layers import attached
from evolora.errors import ConfigError, RunError
from evolora.runs.checkpoint import latest, save
from evolora.search import from_checkpoint, make_method, to_checkpoint
from evolora.search.cma import CMA, LIMIT
from evolora.search.coordinates import AtPoints, merge_weights, random_directions, singular_values

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    cma = pytest.importorskip("cma")

TEMPLATE = matrices((6, 10), (8, 5))
NAMES = list(TEMPLATE)
PROMPTS, ANSWERS = ["ab ->", "cde ->", "f ->"], [" b", " d", " f"]


def lora(seed=0, names=NAMES, rank=3):
    generator = torch.Generator().manual_seed(seed)
    return Adapter(
        {
            name: Factors(
                torch.randn(rank, TEMPLATE[name].d_in, generator=generator),
                torch.randn(TEMPLATE[name].d_out, rank, generator=generator),
            )
            for name in names
        }
    )


def point(state, name="mean"):
    return state.tensor(name).numpy()


def tell(method, state, rewards, progress=0.0):
    method.ask(state)
    return method.tell(state, torch.as_tensor(rewards, dtype=torch.float32), progress)


def random_rewards(method, state, step=0):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(method.members(state), 4, generator=generator)


def same(one, two):
    return all(torch.equal(value, two.tensors[key]) for key, value in one.tensors.items()) and dict(
        one.numbers
    ) == dict(two.numbers)


def forgotten(state):
    """The same state, for which no object of the package is at hand."""
    return from_checkpoint(dict(state.template), *to_checkpoint(state))


class Plain:
    """The package as its manual uses it, on the same coordinates and the same deviates."""

    def __init__(self, start, sigma, seed, members):
        self.seed, self.step = seed, 0
        options = {"randn": self.deviates, "seed": np.nan, "popsize": members, "verbose": -9, "verb_log": 0}
        self.strategy = cma.CMAEvolutionStrategy(start, sigma, options)

    def deviates(self, members, dimension):
        out = np.empty((members, dimension), np.float32)
        normal(out, seed=self.seed, step=self.step, tensor="cma")
        self.step += 1
        return out.astype(np.float64)


def ellipsoid(points, axes):
    """A quadratic whose curvatures differ; the optimum at 0.3 on each coordinate. Float32 as rewards are."""
    return ((np.asarray(points) - 0.3) ** 2 @ axes).astype(np.float32)


# ---------------------------------------------------------------------------------------------- the package


@pytest.mark.parametrize("with_start", [False, True])
def test_the_trajectory_is_that_of_a_plain_loop_over_the_package_bit_for_bit(with_start):
    start = lora() if with_start else None
    method = CMA(directions=3, **({"sigma_values": 0.2} if with_start else {"sigma": 0.05}))
    state = method.init(TEMPLATE, 5, start)
    if with_start:
        coordinates, sigma = singular_values(TEMPLATE, start, 3), 0.2
    else:
        coordinates, sigma = random_directions(TEMPLATE, 3, 5), 0.05
    plain = Plain(coordinates.start.numpy(), sigma, 5, 4 + int(3 * np.log(6)))
    axes = np.logspace(0, 2, 6)
    for step in range(60):
        points = plain.strategy.ask()
        ours = dense_members(method.ask(state))
        theirs = dense_members(
            AtPoints(coordinates, torch.from_numpy(np.stack(points)), [str(i) for i in range(len(points))])
        )
        assert all(torch.equal(ours[name], theirs[name]) for name in TEMPLATE)
        loss = ellipsoid(points, axes)
        state, _ = method.tell(state, -torch.from_numpy(loss)[:, None], (step + 1) / 60)
        plain.strategy.tell(points, loss)
        assert np.array_equal(point(state), plain.strategy.mean)
        assert state.numbers["sigma"] == plain.strategy.sigma
    assert ellipsoid(point(state), axes) < 1e-3 * ellipsoid(coordinates.start.numpy(), axes)


def test_the_covariance_becomes_that_of_the_landscape():
    method = CMA(directions=3)
    state = method.init(TEMPLATE, 0)
    axes = np.logspace(0, 4, 6)
    coordinates = random_directions(TEMPLATE, 3, 0)
    for _ in range(250):
        points = coordinates_of(method.ask(state), coordinates)
        state, metrics = method.tell(state, -torch.from_numpy(ellipsoid(points, axes))[:, None])
    assert metrics["axis_ratio"] == pytest.approx(100, rel=0.7)  # C is the inverse Hessian


def coordinates_of(population, coordinates):
    """The points of members, read off their deltas."""
    found = []
    for name, delta in dense_members(population).items():
        b = coordinates.b[name]
        u = b / b.norm(dim=0).square()
        found.append(torch.einsum("or,noi,ri->nr", u, delta, coordinates.a[name]))
    return torch.cat(found, 1).double().numpy()


def test_neither_numpys_nor_torchs_global_generator_is_touched():
    method = CMA(directions=2)
    before, torch_before = np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    state = method.init(TEMPLATE, 0)
    for step in range(4):
        state, _ = tell(method, state, random_rewards(method, state, step))
        state = forgotten(state)
    after = np.random.get_state()  # noqa: NPY002
    assert after[2] == before[2]
    assert np.array_equal(before[1], after[1])
    assert torch.equal(torch_before, torch.get_rng_state())


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cma", None)
    method = make_method("cma")  # the registry, the command and the docs table need no package
    with pytest.raises(ConfigError, match=r"cma is not installed; pip install 'evolora\[cma\]'"):
        method.init(TEMPLATE, 0)


# ------------------------------------------------------------------------------------------------ the state


def mixed(method, state, steps):
    """Steps of every kind: plain, without spread, with absent members, with none at all."""
    for step in range(state.step, steps):
        rewards = random_rewards(method, state, step)
        if step % 4 == 1:
            rewards[:] = 3.0
        if step % 4 == 2:
            rewards[1:4], rewards[0, 1] = float("nan"), float("nan")
        if step % 8 == 7:
            rewards[:] = float("nan")
        state, _ = tell(method, state, rewards)
    return state


@pytest.mark.parametrize(("option", "with_start"), [("sigma", True), ("sigma_values", False)])
def test_a_size_that_would_not_be_looked_at_is_refused(option, with_start):
    with pytest.raises(ConfigError, match=f"{option} has no say with"):
        CMA(**{option: 0.3}).init(TEMPLATE, 0, lora() if with_start else None)


@pytest.mark.parametrize("start", [None, lora(names=NAMES[:1])], ids=["random", "start"])
def test_replayed_states_go_on_bit_for_bit_after_steps_of_every_kind(start):
    method = CMA(directions=3)
    whole = mixed(method, method.init(TEMPLATE, 0, start), 24)
    state = method.init(TEMPLATE, 0, start)
    for stop in range(1, 25):
        state = mixed(method, forgotten(state), stop)
    assert same(state, whole)
    assert len(state.tensor("history")) == 24


def test_a_state_survives_a_checkpoint_on_disk_though_modules_are_without_directions(tmp_path):
    method = CMA(directions=3)
    state = mixed(method, method.init(TEMPLATE, 0, lora(names=NAMES[:1])), 5)
    save(tmp_path, state.step, *to_checkpoint(state))
    saved = latest(tmp_path)
    again = from_checkpoint(TEMPLATE, saved.tensors, saved.numbers)
    assert same(state, again)
    assert same(mixed(method, again, 9), mixed(method, state, 9))


def test_a_state_can_be_asked_and_told_again_after_the_search_went_on():
    method = CMA(directions=3)
    early = mixed(method, method.init(TEMPLATE, 0), 3)
    rewards = random_rewards(method, early, 3)
    before = dense_members(method.ask(early))
    first, _ = method.tell(early, rewards)
    mixed(method, first, 9)
    again = dense_members(method.ask(early))
    assert all(torch.equal(before[name], again[name]) for name in before)
    assert same(method.tell(early, rewards)[0], first)


def test_a_state_that_a_guard_puts_back_at_a_later_step_goes_on_and_resumes_bit_for_bit():
    method = CMA(directions=3)
    best = mixed(method, method.init(TEMPLATE, 0), 3)
    late = mixed(method, best, 8)
    back = mixed(method, replace(best, step=late.step, turn=late.turn), 12)
    assert same(mixed(method, forgotten(back), 15), mixed(method, back, 15))
    assert back.tensor("steps").tolist() == [0, 1, 2, 8, 9, 10, 11]


def test_many_coordinates_are_adapted_by_the_same_rule_as_few():
    template = matrices(*[(4, 4)] * 310)
    method = CMA()
    whole = mixed(method, method.init(template, 0), 4)
    state = method.init(template, 0)
    for stop in range(1, 5):
        state = mixed(method, forgotten(state), stop)
        method.ask(state)
    assert same(state, whole)


def test_rewards_that_do_not_lead_to_the_saved_mean_are_refused():
    method = CMA(directions=3)
    state = forgotten(mixed(method, method.init(TEMPLATE, 0), 6))
    history = state.tensor("history").clone()
    history[0] = history[0].flip(0)
    foreign = type(state)(
        TEMPLATE, 0, 6, tensors=dict(state.tensors) | {"history": history}, numbers=state.numbers
    )
    with pytest.raises(RunError, match="do not lead to the saved mean; resume with"):
        method.ask(foreign)


# ---------------------------------------------------------------------------------------------- the rewards


def test_the_history_holds_minus_the_mean_over_prompts():
    method = CMA(directions=3)
    state = method.init(TEMPLATE, 0)
    rewards = random_rewards(method, state)
    after, _ = tell(method, state, rewards)
    torch.testing.assert_close(after.tensor("history")[0].float(), -rewards.mean(1))


def test_a_member_without_a_value_is_told_as_the_median_of_the_others():
    method = CMA(directions=3, population=7)
    state = method.init(TEMPLATE, 0)
    nan = float("nan")
    after, metrics = tell(method, state, [[4.0], [nan], [1.0], [2.0], [nan], [9.0], [3.0]])
    assert after.tensor("history")[0].tolist() == [-4, -3, -1, -2, -3, -9, -3]
    assert metrics["failed"] == 2


def test_a_missing_prompt_is_made_up_for_by_how_hard_it_is():
    method = CMA(directions=3, population=6)
    state = method.init(TEMPLATE, 0)
    rewards = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.5]])
    rewards[0, 1] = float("nan")  # of one prompt only, the easy one: no better than the others
    after, _ = tell(method, state, rewards)
    told = after.tensor("history")[0]
    assert told[1:5].unique().numel() == 1
    assert told.argmin() == 5
    assert told[0] > told[5]


def test_steps_without_spread_tell_nothing_and_the_next_step_tries_other_points():
    method = CMA(directions=3)
    state = mixed(method, method.init(TEMPLATE, 0), 1)
    before = dense_members(method.ask(state))
    after, metrics = tell(method, state, torch.ones(method.members(state), 2))
    assert metrics["no_spread"] == 1
    assert np.array_equal(point(after), point(state))
    assert after.numbers["sigma"] == state.numbers["sigma"]
    assert not torch.equal(dense_members(method.ask(after))[NAMES[0]], before[NAMES[0]])
    assert "axis_ratio" not in metrics


# ----------------------------------------------------------------------------------------- starts and sizes


def test_it_finds_the_singular_values_that_a_start_should_have():
    start = lora()
    method = CMA(directions=3)
    state = method.init(TEMPLATE, 0, start)
    coordinates = singular_values(TEMPLATE, start, 3)
    wanted = coordinates.start * torch.tensor([1.0, 0.5, -0.7, 0.2, 1.5, 0.0])  # one turned around, one gone
    target = {name: factors.delta() for name, factors in coordinates.modules(wanted).items()}
    first = distance(method.mean(state), target)
    for step in range(80):
        rewards = quadratic_rewards(method.ask(state), target)
        state, _ = method.tell(state, rewards, (step + 1) / 80)
    assert distance(method.mean(state), target) < 1e-3 * first
    np.testing.assert_allclose(point(state), wanted.numpy(), atol=0.02)


def test_it_finds_the_weights_of_a_merge():
    parents = [lora(1), lora(2, NAMES[:1], rank=1), lora(3, rank=2)]
    coordinates, wanted = merge_weights(parents), torch.tensor([0.8, -0.4, 0.1])
    method = CMA()
    state = method.begin(coordinates, 0.2, seed=0)
    target = {
        name: sum(
            weight * parent.modules[name].delta()
            for weight, parent in zip(wanted, parents, strict=True)
            if name in parent.modules
        )
        for name in NAMES
    }
    assert point(state).tolist() == [1 / 3] * 3
    for step in range(60):
        rewards = quadratic_rewards(method.ask(state), target)
        state, _ = method.tell(forgotten(state) if step == 30 else state, rewards, (step + 1) / 60)
    np.testing.assert_allclose(point(state), wanted.numpy(), atol=1e-2)
    merged = method.adapter(state)
    assert merged.rank == 6
    for name, delta in dense_members(method.mean(state)).items():
        torch.testing.assert_close(merged.modules[name].delta(), delta[0])


def test_best_is_the_best_member_of_all_steps_and_mean_is_the_mean():
    method = CMA(directions=3, export="best")
    state = method.init(TEMPLATE, 0)
    best, where = -np.inf, None
    for step in range(8):
        population, rewards = method.ask(state), random_rewards(method, state, step).mean(1, keepdim=True)
        if rewards.max() > best:
            best = rewards.max().item()
            where = {name: d[int(rewards.argmax())] for name, d in dense_members(population).items()}
        state, _ = method.tell(state, rewards)
        found = dense_members(method.mean(state))
        assert all(torch.equal(found[name][0], where[name]) for name in where)
        mean = dense_members(CMA(directions=3).mean(state))
        assert not any(torch.equal(mean[name][0], where[name]) for name in where)
    assert state.numbers["best_reward"] == pytest.approx(best)


def test_the_adapter_is_exact_at_the_rank_of_the_directions():
    method = CMA(directions=3)
    state = mixed(method, method.init(TEMPLATE, 0), 3)
    adapter = method.adapter(state)
    assert adapter.rank == 3
    assert "truncation_error" not in adapter.provenance
    for name, delta in dense_members(method.mean(state)).items():
        assert torch.equal(adapter.modules[name].delta(), delta[0])
    assert method.adapter(state, rank=2).provenance["truncation_error"] > 0


def test_too_many_and_too_few_coordinates_are_refused_by_number():
    many = matrices(*[(3, 3)] * (LIMIT // 3 + 1))
    with pytest.raises(ConfigError, match=f"{3 * len(many)} coordinates.*2 to {LIMIT}"):
        CMA(directions=3).init(many, 0)
    with pytest.raises(ConfigError, match="1 coordinates"):
        CMA(directions=1).init(TEMPLATE, 0, lora(names=NAMES[:1]))


def test_the_default_population_is_the_packages():
    for template in (matrices((9, 9), (9, 9)), matrices(*[(9, 9)] * 40)):
        state = CMA().init(template, 0)
        options = {"randn": lambda *shape: np.zeros(shape), "seed": np.nan, "verbose": -9}
        assert CMA().members(state) == cma.CMAEvolutionStrategy([0.0] * len(template), 1, options).popsize


def test_halving_its_steps_leaves_it_alone():
    assert CMA(sigma=0.1).halved(3) == CMA(sigma=0.1)


# ------------------------------------------------------------------------------------------------ on a model


def engine_of(model, tokenizer):
    return Engine(Base(model, tokenizer, "tiny"))


def test_a_likelihood_reward_teaches_a_language_model_and_peft_loads_the_result(
    tiny_llama, char_tokenizer, tmp_path
):
    engine = engine_of(tiny_llama, char_tokenizer)
    likelihood = partial(engine.log_likelihood, prompts=PROMPTS, answers=ANSWERS)
    method = CMA(directions=2, sigma=0.05)
    state = method.init(engine.base.modules("all-linear"), 0)
    population = method.ask(state)
    whole = likelihood(population)
    alone = torch.cat([likelihood(population.select([i])) for i in range(len(population))])
    torch.testing.assert_close(whole, alone, rtol=1e-4, atol=1e-4)

    for step in range(25):
        state, _ = method.tell(state, likelihood(method.ask(state)), (step + 1) / 25)
    adapter = method.adapter(state)
    assert likelihood(adapter).mean() > likelihood(None).mean() + 1
    assert torch.equal(likelihood(adapter), likelihood(method.mean(state)))

    ids, bound = torch.tensor([engine.base.encode("abc ->")]), engine.bind(adapter)
    with torch.no_grad(), attached(engine.base, engine.terms(bound, [0]), bound.shared):
        ours = engine.forward(bound, ids, 1, positions=torch.arange(ids.numel()))
    peft = PeftModel.from_pretrained(copy.deepcopy(engine.base.model), adapter.save(tmp_path / "lora"))
    with torch.no_grad():
        theirs = peft.eval()(input_ids=ids).logits.flatten(0, 1)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
