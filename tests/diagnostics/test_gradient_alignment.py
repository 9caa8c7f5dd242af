"""The cosine of an estimate with the true gradient rises with the population as theory says."""

from dataclasses import replace
from math import pi, sqrt

import pytest
import torch

from evolora.adapters import DENSE, ModuleSpec
from evolora.diagnostics.gradient import alignment, cosine, estimate, expected_cosine
from evolora.errors import ProtocolError
from evolora.problems import Problem, load_reward
from evolora.search import Eggroll
from evolora.search.mezo import MeZO
from evolora.search.openai_es import OpenAIES
from evolora.tasks import Example, Task

TEMPLATE = {"a": ModuleSpec(8, 16), "b": ModuleSpec(12, 6)}
EXAMPLES = tuple(Example(f"{letter}{letter}:", " e") for letter in "abcdefgh")


@pytest.fixture
def slope(draw):
    return {name: draw(spec.d_out, spec.d_in, name=name) for name, spec in TEMPLATE.items()}


def linear(slope, curvature=0.0):
    """The reward G . D - curvature/2 |D|^2 of each member."""

    def judge(population):
        reward = 0.0
        for name, stack in population.block(range(len(population))).items():
            delta = stack.b if stack.a is None else stack.b @ stack.a
            delta = delta.repeat_interleave(len(population) // len(delta), 0).double()
            if stack.coefficient is not None:
                delta = delta * stack.coefficient[:, None, None]
            if name in population.shared:
                delta = delta + population.shared[name]
            reward = reward + (slope[name] * delta - curvature / 2 * delta.square()).sum((1, 2))
        return reward[:, None]

    return judge


def mean_cosine(method, judge, slope, steps):
    state, total = method.init(TEMPLATE, 0), 0.0
    for step in range(steps):
        total += cosine(estimate(method, replace(state, step=step), judge)[1], slope) / steps
    return total


@pytest.mark.parametrize("pairs", [1, 4, 16, 64])
@pytest.mark.parametrize("rank", [DENSE, 1, 3], ids=["full rank", "rank 1", "rank 3"])
def test_the_cosine_is_what_the_moments_of_the_noise_say(slope, pairs, rank):
    options = {"population": 2 * pairs, "sigma": 0.01, "antithetic": True, "shaping": "pair_rms"}
    method = Eggroll(rank=rank, **options) if rank else OpenAIES(**options)
    found = mean_cosine(method, linear(slope), slope, steps={1: 800, 4: 300, 16: 60, 64: 16}[pairs])
    assert found == pytest.approx(expected_cosine(slope, pairs, rank), rel=0.1)


def test_it_rises_with_the_population_and_falls_with_curvature(slope):
    methods = [Eggroll(population=n, sigma=0.02) for n in (4, 16, 64)]
    rising = [mean_cosine(method, linear(slope), slope, 10) for method in methods]
    assert rising == sorted(rising)
    one_sided = Eggroll(population=32, sigma=1.0, antithetic=False, shaping="zscore")
    flat, curved = (mean_cosine(one_sided, linear(slope, c), slope, 10) for c in (0.0, 2.0))
    assert curved < 0.8 * flat
    pairs = Eggroll(population=64, sigma=1.0)
    # in pairs a quadratic has no curvature
    flat, curved = (mean_cosine(pairs, linear(slope, c), slope, 5) for c in (0.0, 2.0))
    assert curved == pytest.approx(flat, rel=1e-3)


def test_the_closed_form_at_full_rank_is_the_projection_on_random_directions():
    gradient = {"x": torch.ones(10, 10)}
    half_normal = sqrt(2 / pi)
    assert expected_cosine(gradient, 1, DENSE) == pytest.approx(half_normal * sqrt(1 / 102))
    assert expected_cosine(gradient, 1, 1) == pytest.approx(half_normal * sqrt(1 / 144))  # (10 + 2)(10 + 2)
    assert expected_cosine(gradient, 400, DENSE) == pytest.approx(sqrt(400 / 501), rel=1e-3)
    assert expected_cosine(gradient, 50, 10**9) == pytest.approx(expected_cosine(gradient, 50, DENSE))
    assert expected_cosine(gradient, 10**7, 1) == pytest.approx(1, rel=1e-4)
    nothing = {"x": torch.zeros(3, 3)}
    assert expected_cosine(nothing, 4, 1) != expected_cosine(nothing, 4, 1)


@pytest.mark.parametrize(
    "method",
    [
        Eggroll(population=8, optimiser="adam", weight_decay=0.5),
        Eggroll(population=8, decay_sigma=True),
        OpenAIES(population=8),
        MeZO(sigma=0.01, lr=1e-2),
        Eggroll(population=8, space="factors", export_rank=4),
    ],
    ids=lambda m: m.name,
)
def test_the_estimate_is_that_of_the_plain_step_wherever_the_search_stands(slope, method):
    state = method.init(TEMPLATE, 0)
    for progress in (0.3, 1.0):
        state, _ = method.tell(state, linear(slope)(method.ask(state)), progress)
    tensors = {name: value.clone() for name, value in state.tensors.items()}
    _, found = estimate(method, state, linear(slope))
    assert cosine(found, slope) > 0
    assert all(torch.equal(value, tensors[name]) for name, value in state.tensors.items())
    assert not state.asked
    same = replace(state, progress=0.0)
    _, again = estimate(method, same, linear(slope))
    assert all(torch.equal(found[name], again[name]) for name in found)


def test_cosine_is_that_of_the_joined_vectors(draw):
    one, other = ({n: draw(3, 4, name=f"{i}{n}") for n in "ab"} for i in "12")
    flat = [torch.cat([side[n].flatten() for n in "ab"]) for side in (one, other)]
    assert cosine(one, other) == pytest.approx(torch.cosine_similarity(*flat, dim=0).item(), rel=1e-5)
    zero = {n: torch.zeros(3, 4) for n in "ab"}
    assert cosine(one, zero) != cosine(one, zero)


@pytest.fixture
def problem(engine):
    task = Task("toy", EXAMPLES[:4], EXAMPLES[4:6], EXAMPLES[6:], 3)

    def make(reward):
        return Problem(engine, task, load_reward(reward), template=engine.base.modules("attention", "top:1"))

    return make


@pytest.mark.parametrize("kind", [Eggroll, OpenAIES])
def test_on_a_language_model_it_is_near_the_closed_form(problem, kind):
    toy, method = problem("logprob"), kind(population=32, sigma=0.002)
    state = method.init(toy.template, 0)
    steps = [alignment(toy, method, replace(state, step=step), EXAMPLES) for step in range(4)]
    assert {found.directions for found in steps} == {16 if method.antithetic else 32}
    ratio = sum(found.cosine / found.expected for found in steps) / 4
    assert ratio == pytest.approx(1, abs=0.2)
    assert steps[0].reward == pytest.approx(toy.judge(None, EXAMPLES).values.mean().item(), rel=1e-5)
    assert steps[0].own is None
    assert steps[0].modules.keys() == toy.template.keys()
    assert steps[0].chance == pytest.approx(sum(s.d_out * s.d_in for s in toy.template.values()) ** -0.5)


def test_the_runs_own_reward_is_read_off_the_same_scores(problem):
    toy, method = problem("exact"), Eggroll(population=8, sigma=0.3)
    found = alignment(toy, method, method.init(toy.template, 0), EXAMPLES)
    assert found.own is not None
    assert found.own != found.cosine


def test_noise_on_factors_has_no_closed_form(problem):
    toy, method = problem("logprob"), Eggroll(population=8, space="factors")
    found = alignment(toy, method, method.init(toy.template, 0), EXAMPLES)
    assert found.expected != found.expected
    assert found.cosine > 0


def test_without_answers_there_is_no_gradient(problem):
    toy, method = problem("logprob"), Eggroll(population=8)
    with pytest.raises(ProtocolError, match="answer is empty"):
        alignment(toy, method, method.init(toy.template, 0), [Example("a:", "")])
