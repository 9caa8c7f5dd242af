"""Rollouts of a real problem on a tiny model: samples, what is judged, what is learned from."""

import pytest
import torch

from evolora.engine import Base, Engine
from evolora.errors import ConfigError
from evolora.problems import Problem, load_reward
from evolora.search import GRPO
from evolora.tasks import Example, Task


def share_of_e(prompts, completions, **columns):
    """A reward that sees nothing but the text."""
    return [text.count("e") / max(1, len(text)) for text in completions]


@pytest.fixture
def make_problem(tiny_llama, char_tokenizer):
    base = Base(tiny_llama, char_tokenizer, "tiny")
    splits = [tuple(Example(f"{letter}{n} ->", "e") for n in range(6)) for letter in "abc"]

    def make(reward=share_of_e, batch_size=3, stop=None, **options):
        task = Task("letters", *splits, max_new_tokens=8, stop=stop)
        engine = Engine(base, **options)
        return Problem(engine, task, load_reward(reward), batch_size, seed=1, max_new_tokens=8)

    return make


def policy(problem, seed=0):
    method = GRPO(rank=2)
    state = method.init(problem.template, seed)
    tensors = {name: value + 0.05 for name, value in state.tensors.items()}
    return method.adapter(type(state)(problem.template, seed, tensors=tensors))


def test_rows_are_the_completions_prompt_by_prompt_and_judged_by_their_text(make_problem):
    problem = make_problem()
    rollouts = problem.rollout(policy(problem), 5, 2, 1.0)
    text = problem.engine.base.text
    assert rollouts.rewards.shape == (3, 5)
    assert rollouts.lengths.tolist() == [len(tokens) for _, tokens in rollouts.pairs]
    assert rollouts.lengths.max() <= rollouts.limit == 8
    for p, example in enumerate(problem.batch(2)):
        for g in range(5):
            prompt, tokens = rollouts.pairs[p * 5 + g]
            assert prompt == problem.engine.base.encode(example.prompt)
            expected = share_of_e([], [text.completion(tokens)])[0]
            assert rollouts.rewards[p, g].item() == pytest.approx(expected)
    assert len({tuple(tokens) for _, tokens in rollouts.pairs}) == 15
    assert problem.engine.ledger.evaluations == 15


def test_samples_depend_on_the_step_and_the_seed_and_on_no_batching(make_problem):
    problem = make_problem()
    one = problem.rollout(policy(problem), 4, 0, 1.0)
    again = make_problem(max_tokens=30).rollout(policy(problem), 4, 0, 1.0)
    assert one.pairs == again.pairs
    assert torch.equal(one.rewards, again.rewards)
    whole = make_problem(batch_size=6)  # the same prompts at every step, in some order
    first, second = (dict_of(whole.rollout(policy(problem), 2, step, 1.0)) for step in (0, 1))
    assert first.keys() == second.keys()
    assert all(first[prompt] != second[prompt] for prompt in first)


def dict_of(rollouts):
    found = {}
    for prompt, tokens in rollouts.pairs:
        found.setdefault(tuple(prompt), []).append(tokens)
    return found


def test_log_probabilities_are_those_of_the_rows_at_the_temperature_of_the_samples(make_problem):
    problem, temperature = make_problem(), 0.8
    adapter = policy(problem)
    rollouts = problem.rollout(adapter, 4, 0, temperature)
    a = {name: f.a for name, f in adapter.modules.items()}
    b = {name: f.b for name, f in adapter.modules.items()}
    rows = [7, 0, 11]
    found = problem.log_probs(a, b, 2.0, rollouts, rows)
    pairs = [rollouts.pairs[row] for row in rows]
    expected = problem.engine.log_probs(a, b, 2.0, pairs, temperature=temperature)
    torch.testing.assert_close(found, expected)
    assert (found != 0).sum(1).tolist() == rollouts.lengths[rows].tolist()
    assert not torch.allclose(found, problem.engine.log_probs(a, b, 2.0, pairs))


def test_tokens_after_a_stop_are_no_part_of_a_completion(make_problem):
    problem = make_problem()
    longest = max((tokens for _, tokens in problem.rollout(policy(problem), 8, 0, 1.0).pairs), key=len)
    pair = problem.engine.base.text.completion(longest)[1:3]
    stopped = make_problem(stop=pair).rollout(policy(problem), 8, 0, 1.0)
    assert longest[:3] in [tokens for _, tokens in stopped.pairs]


def test_a_reward_of_scores_is_refused_by_name_before_anything_runs(make_problem):
    problem = make_problem("logprob")
    problem.check_texts()
    with pytest.raises(ConfigError, match=r"logprob is read off scores and cannot judge sampled.*choose a"):
        problem.check_texts(samples=True)


def test_it_learns_from_a_reward_of_texts_alone(make_problem):
    problem = make_problem()
    method = GRPO(lr=0.02, samples=16, rank=4)
    state, seen = method.init(problem.template, 0), []
    for step in range(20):
        state, metrics = method.step(state, problem, (step + 1) / 20)
        seen.append(metrics["reward_mean"])
    assert sum(seen[-3:]) > 3 * sum(seen[:3])
    greedy = problem.engine.generate(method.adapter(state), ["b1 ->", "c5 ->"], max_new_tokens=8)[0]
    assert sum(share_of_e([], greedy)) > 1.5


def test_epochs_and_a_divergence_from_the_base_run_on_a_model(make_problem):
    problem = make_problem()
    method = GRPO(lr=0.02, samples=6, epochs=3, kl=0.1, average="sequence")
    state, metrics = method.step(method.init(problem.template, 0), problem, 0.5)
    assert metrics["clip_fraction"] > 0
    assert metrics["kl"] > 0
    before = problem.engine.ledger.backward_flops
    held = method.model_copy(update={"kl": 100.0})
    state, metrics = held.step(state, problem, 0.6)
    assert metrics["not_finite"] == 0
    assert problem.engine.ledger.backward_flops > before > 0
