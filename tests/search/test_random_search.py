import copy
from math import sqrt

import pytest
import torch
from dense_evaluation import dense_members, distance, matrices, quadratic_rewards, random_target
from peft import PeftModel

from evolora.adapters import Adapter, Factors
from evolora.engine import Base, Engine
from evolora.errors import ConfigError
from evolora.search import from_checkpoint, to_checkpoint
from evolora.search.random_search import RandomSearch

TEMPLATE = matrices((6, 10), (8, 5))
PROMPTS, ANSWERS = ["ab ->", "cde ->", "f ->"], [" b", " d", " f"]
around_both = pytest.mark.parametrize("around", ["incumbent", "start"])


def tell(method, state, rewards, progress=0.0):
    method.ask(state)
    return method.tell(state, torch.as_tensor(rewards), progress)


def member(population, index):
    return {name: delta[index] for name, delta in dense_members(population).items()}


def incumbent(method, state):
    return member(method.mean(state), 0)


def close(one, two):
    return all(torch.allclose(one[name], two[name], rtol=1e-5, atol=1e-6) for name in one)


def equal(one, two):
    return all(torch.equal(one[name], two[name]) for name in one)


@around_both
def test_the_best_member_becomes_the_incumbent_and_is_judged_again_as_member_0(around):
    method = RandomSearch(population=5, around=around, rank=2, sigma=0.1)
    state = method.init(TEMPLATE, 0)
    for rewards, best in [([0, 1, 3, 2, -1], 2), ([0, 0, 0, 0, 0.5], 4), ([1, 2, 2, 0, 0], 1)]:
        chosen = member(method.ask(state), best)
        state, metrics = tell(method, state, [[float(r)] for r in rewards], 0.3)
        assert metrics["accepted"] == 1
        assert metrics["gain"] == rewards[best] - rewards[0]
        assert close(incumbent(method, state), chosen)
        assert close(member(method.ask(state), 0), incumbent(method, state))


@around_both
def test_ties_with_the_incumbent_and_worse_members_keep_it(around):
    method = RandomSearch(population=4, around=around)
    state, _ = tell(method, method.init(TEMPLATE, 0), [[0.0], [1.0], [0.0], [0.0]])
    for rewards, spread in [([2, 2, 2, 1], 1), ([2, 1, 0, 1.5], 1), ([2, 2, 2, 2], 0)]:
        after, metrics = tell(method, state, [[float(r)] for r in rewards])
        assert equal(incumbent(method, after), incumbent(method, state))
        assert metrics["update_norm"] == metrics["accepted"] == metrics["gain"] == 0
        assert metrics["no_spread"] == 1 - spread
        state = after


def test_members_are_compared_with_the_incumbent_on_the_prompts_that_both_have():
    nan = float("nan")
    method = RandomSearch(population=4)
    start = method.init(TEMPLATE, 0)
    # by its own mean member 1 were the best: it lacks the prompt that is hard for everybody
    rewards = [[9.0, 0.0, nan], [8.0, nan, 8.0], [9.0, 1.0, nan], [nan, nan, 7.0]]
    chosen = member(method.ask(start), 2)
    state, metrics = tell(method, start, rewards)
    assert close(incumbent(method, state), chosen)
    assert metrics["gain"] == 0.5
    assert metrics["failed"] == 0


def test_without_a_value_for_the_incumbent_nothing_is_compared():
    method = RandomSearch(population=3)
    start = method.init(TEMPLATE, 0)
    after, metrics = tell(method, start, [[float("nan")], [1.0], [2.0]])
    assert equal(incumbent(method, after), incumbent(method, start))
    assert metrics["failed"] == metrics["no_spread"] == 1


def test_a_minibatch_that_is_easy_for_all_is_no_progress():
    method, target = RandomSearch(population=8), random_target(TEMPLATE, 1, 0.1)
    states = [method.init(TEMPLATE, 0) for _ in range(2)]
    for step in range(6):
        rewards = quadratic_rewards(method.ask(states[0]), target)
        states = [
            tell(method, state, rewards + level)[0]
            for state, level in zip(states, (0.0, (-1) ** step * 64.0), strict=True)
        ]
    assert all(close(incumbent(method, states[0]), incumbent(method, state)) for state in states)


def test_around_the_incumbent_it_is_a_plain_loop_that_keeps_the_best():
    method, target = RandomSearch(population=6, sigma=0.05), random_target(TEMPLATE, 1, 0.1)
    state, best = (
        method.init(TEMPLATE, 3),
        {name: torch.zeros(6 + 2 * i, 10 - 5 * i) for i, name in enumerate(TEMPLATE)},
    )
    for step in range(10):
        population = method.ask(state)
        tries = [best] + [
            {name: best[name] + member(population, i)[name] - member(population, 0)[name] for name in best}
            for i in range(1, 6)
        ]
        loss = [sum((t[name] - target[name]).square().sum() for name in target) for t in tries]
        best = tries[int(torch.stack(loss).argmin())]
        state, _ = tell(method, state, quadratic_rewards(population, target), (step + 1) / 10)
        assert close(incumbent(method, state), best)


def test_around_the_start_members_never_leave_it_and_the_best_of_all_is_kept():
    template = matrices((2, 2))
    module = next(iter(template))
    start = Adapter({module: Factors(torch.ones(1, 2), torch.ones(2, 1))})
    method = RandomSearch(population=8, around="start", sigma=0.3, decay="constant", rank=2)
    target = {module: 1 + random_target(template, 2, 0.2)[module]}
    state, seen = method.init(template, 0, start), []
    for step in range(40):
        population = method.ask(state)
        rewards = quadratic_rewards(population, target, 1)
        seen.append(rewards.max().item())
        state, _ = tell(method, state, rewards, (step + 1) / 40)
        assert -distance(method.mean(state), target) == pytest.approx(max(seen), abs=1e-5)
        away = dense_members(population)[module][1:] - 1
        assert away.mean().abs() < 0.3  # of 28 numbers with deviation 0.3, around the start: 5 deviations
    assert max(seen) > 0.3 * seen[0]


def test_a_resumed_incumbent_around_the_start_is_the_same_to_the_last_bit():
    method = RandomSearch(population=4, around="start")
    state, _ = tell(method, method.init(TEMPLATE, 0), [[0.0], [0.0], [2.0], [1.0]])
    again = from_checkpoint(TEMPLATE, *to_checkpoint(state))
    assert equal(incumbent(method, again), incumbent(method, state))
    assert not equal(incumbent(method, again), incumbent(method, method.init(TEMPLATE, 0)))


def test_perturbations_have_the_stated_size_rank_and_decay():
    template = matrices((40, 50))
    method = RandomSearch(population=33, sigma=0.1, rank=3)
    state = method.init(template, 0)
    for left in (1.0, 0.25):
        deltas = dense_members(method.ask(state))["layer.0.proj"]
        assert not deltas[0].any()
        assert deltas[1:].std() == pytest.approx(0.1 * left, rel=0.03)
        assert all(torch.linalg.matrix_rank(delta, rtol=1e-4) == 3 for delta in deltas[1:])
        state, metrics = tell(method, state, [[0.0]] * 33, 0.75)
        assert metrics["sigma"] == pytest.approx(0.1 * left)
    constant = RandomSearch(sigma=0.1, decay="constant")
    assert tell(constant, constant.init(template, 0), [[0.0]] * 32, 0.5)[1]["sigma"] == 0.1


def test_the_norm_of_an_accepted_step_is_that_of_the_perturbation():
    method = RandomSearch(population=3, sigma=0.1)
    start = method.init(TEMPLATE, 0)
    chosen = member(method.ask(start), 1)
    _, metrics = tell(method, start, [[0.0], [1.0], [0.0]])
    norm = sqrt(sum(delta.square().sum().item() for delta in chosen.values()))
    assert metrics["update_norm"] == pytest.approx(norm, rel=1e-5)
    assert metrics["delta_norm"] == pytest.approx(norm, rel=1e-5)


def test_halving_its_steps_halves_sigma():
    assert RandomSearch(sigma=0.08).halved(2) == RandomSearch(sigma=0.02)


def test_a_population_of_the_incumbent_alone_is_refused():
    with pytest.raises(ConfigError, match="population"):
        RandomSearch(population=1)


@pytest.fixture
def engine(tiny_llama, char_tokenizer):
    return Engine(Base(tiny_llama, char_tokenizer, "tiny"))


@around_both
def test_on_a_model_members_in_a_batch_equal_members_one_by_one(engine, around):
    method = RandomSearch(population=6, sigma=0.1, rank=2, around=around)
    state = method.init(engine.base.modules("all-linear"), 0)
    state, _ = tell(method, state, [[0.0], [1.0], [0.0], [0.0], [0.0], [0.0]])
    population = method.ask(state)
    whole = engine.log_likelihood(population, PROMPTS, ANSWERS)
    alone = [engine.log_likelihood(population.select([i]), PROMPTS, ANSWERS) for i in range(6)]
    torch.testing.assert_close(whole, torch.cat(alone), rtol=1e-4, atol=1e-4)
    assert len(whole.unique(dim=0)) == 6
    again = engine.log_likelihood(method.mean(state), PROMPTS, ANSWERS)[0]
    torch.testing.assert_close(whole[0], again, rtol=1e-4, atol=1e-4)


def test_the_exported_folder_gives_peft_the_logits_of_the_incumbent(engine, tmp_path):
    method = RandomSearch(population=4, sigma=0.1, rank=2)
    state = method.init(engine.base.modules("all-linear"), 0)
    for step in range(3):
        population = method.ask(state)
        rewards = engine.log_likelihood(population, PROMPTS, ANSWERS)
        state, _ = method.tell(state, rewards, step / 3)
    folder = method.adapter(state, rank=32).save(tmp_path / "adapter")
    model = PeftModel.from_pretrained(copy.deepcopy(engine.base.model), folder).eval()
    expected = engine.log_likelihood(method.mean(state), PROMPTS, ANSWERS)[0]
    assert (expected - engine.log_likelihood(None, PROMPTS, ANSWERS)[0]).abs().max() > 1e-2
    for prompt, answer, value in zip(PROMPTS, ANSWERS, expected, strict=True):
        start, end = (
            engine.base.encode(prompt),
            [*engine.base.encode(answer, answer=True), engine.base.end_tokens[0]],
        )
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([start + end])).logits[0, len(start) - 1 : -1]
        got = torch.log_softmax(logits, -1).gather(1, torch.tensor(end)[:, None]).sum()
        torch.testing.assert_close(got, value, rtol=1e-4, atol=1e-4)
