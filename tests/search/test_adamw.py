from math import sqrt

import pytest
import torch
from dense_evaluation import QuadraticEngine, dense_members, matrices, random_target

from evolora.adapters import Adapter, Factors
from evolora.errors import AdapterError, ConfigError, ProtocolError
from evolora.search import AdamW

TEMPLATE = matrices((6, 10), (8, 5))
TARGET = random_target(TEMPLATE, 2, 0.3)
EXAMPLES = [("1", " a"), ("2", " b"), ("3", " c"), ("6", " d")]


def plain_torch_loop(method, state, steps):
    """The same training written with torch's own optimiser, clipping and scheduler."""
    factors = method.adapter(state).modules
    a = {name: torch.nn.Parameter(f.a.clone()) for name, f in factors.items()}
    b = {name: torch.nn.Parameter(f.b.clone()) for name, f in factors.items()}
    parameters = [*a.values(), *b.values()]
    optimiser = torch.optim.AdamW(
        parameters, lr=method.lr, betas=(method.beta1, method.beta2), weight_decay=method.weight_decay
    )
    middle = lambda step: (step + 0.5) / steps
    factor = lambda step: min(1.0, middle(step) / method.warmup, (1 - middle(step)) / (1 - method.warmup))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, factor)
    engine = QuadraticEngine(TARGET)
    for _ in range(steps):
        optimiser.zero_grad()
        engine.training_loss(a, b, method.scale, [p for p, _ in EXAMPLES], []).backward()
        torch.nn.utils.clip_grad_norm_(parameters, method.clip)
        optimiser.step()
        schedule.step()
    return {name: (a[name].detach(), b[name].detach()) for name in a}


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_it_agrees_with_a_plain_torch_loop(weight_decay):
    method = AdamW(lr=0.02, rank=3, weight_decay=weight_decay)
    start, steps = method.init(TEMPLATE, 5), 25
    state = start
    for step in range(steps):
        state, _ = method.step(state, QuadraticEngine(TARGET), EXAMPLES, (step + 1) / steps)
    expected = plain_torch_loop(method, start, steps)
    for name, factors in method.adapter(state).modules.items():
        torch.testing.assert_close(factors.a, expected[name][0], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(factors.b, expected[name][1], rtol=1e-4, atol=1e-6)


def test_micro_batches_add_up_to_the_whole_batch():
    states, engines = [], []
    for size in (0, 1, 3):
        method, engine = AdamW(micro_batch=size), QuadraticEngine(TARGET)
        state, metrics = method.step(method.init(TEMPLATE, 0), engine, EXAMPLES, 0.5)
        states.append((state, metrics["loss"], metrics["grad_norm"]))
        engines.append(engine.calls)
    assert engines == [1, 4, 2]
    for state, loss, norm in states[1:]:
        assert loss == pytest.approx(states[0][1], rel=1e-5)
        assert norm == pytest.approx(states[0][2], rel=1e-5)
        for key, value in states[0][0].tensors.items():
            torch.testing.assert_close(state.tensors[key], value, rtol=1e-4, atol=1e-7)


def test_the_step_size_rises_over_the_warm_up_and_falls_to_zero():
    method = AdamW(lr=1.0, warmup=0.2)
    state, seen = method.init(TEMPLATE, 0), []
    for step in range(10):
        state, metrics = method.step(state, QuadraticEngine(TARGET), EXAMPLES, (step + 1) / 10)
        seen.append(metrics["lr"])
    assert seen == pytest.approx([0.25, 0.75] + [(1 - (i + 0.5) / 10) / 0.8 for i in range(2, 10)])


def test_the_first_step_already_learns():
    method = AdamW()
    state = method.init(TEMPLATE, 0)
    after, metrics = method.step(state, QuadraticEngine(TARGET), EXAMPLES, 0.01)
    assert metrics["update_norm"] > 0
    assert all(after.tensors[f"b/{name}"].any() for name in TEMPLATE)


def test_the_reported_norms_are_those_of_the_delta_and_the_step():
    method = AdamW(rank=3)
    state = method.init(TEMPLATE, 0)
    for progress in (0.3, 0.6):
        before = state
        state, metrics = method.step(state, QuadraticEngine(TARGET), EXAMPLES, progress)
    delta = sqrt(sum(d.square().sum().item() for d in dense_members(method.mean(state)).values()))
    moved = sum(
        (state.tensors[k] - before.tensors[k]).square().sum().item() for k in state.tensors if k[1] == "/"
    )
    assert metrics["delta_norm"] == pytest.approx(delta, rel=1e-5)
    assert metrics["update_norm"] == pytest.approx(sqrt(moved), rel=1e-3)


class BrokenEngine:
    def training_loss(self, a, b, scale, prompts, answers, *, stop=None):
        return sum((value * float("nan")).sum() for value in a.values())


class DeafEngine:
    """A loss that some of the factors have no part in."""

    def training_loss(self, a, b, scale, prompts, answers, *, stop=None):
        return (b["layer.0.proj"] - 1).square().sum()


def test_a_loss_that_is_not_finite_updates_nothing_and_is_counted():
    method = AdamW()
    state, _ = method.step(method.init(TEMPLATE, 0), QuadraticEngine(TARGET), EXAMPLES, 0.3)
    after, metrics = method.step(state, BrokenEngine(), EXAMPLES, 0.6)
    assert metrics["failed"] == 1
    assert after.step == 2
    assert all(torch.equal(after.tensors[key], value) for key, value in state.tensors.items())


def test_factors_without_a_gradient_stay_where_they_are():
    method = AdamW()
    state = method.init(TEMPLATE, 0)
    after, _ = method.step(state, DeafEngine(), EXAMPLES, 0.5)
    assert torch.equal(after.tensors["a/layer.1.proj"], state.tensors["a/layer.1.proj"])
    assert after.tensors["b/layer.0.proj"].any()


def test_the_saved_factors_carry_no_graph():
    method = AdamW()
    state, _ = method.step(method.init(TEMPLATE, 0), QuadraticEngine(TARGET), EXAMPLES, 0.5)
    assert not any(value.requires_grad or value.grad is not None for value in state.tensors.values())
    assert method.adapter(state).modules["layer.0.proj"].scale == method.scale


def test_a_starting_adapter_of_a_larger_rank_is_refused():
    start = Adapter({"layer.0.proj": Factors(torch.ones(4, 10), torch.ones(6, 4))})
    with pytest.raises(AdapterError, match="rank 4, above 2"):
        AdamW(rank=2).init(TEMPLATE, 0, start)


def test_a_step_without_examples_is_refused():
    method = AdamW()
    with pytest.raises(ProtocolError, match="without examples"):
        method.step(method.init(TEMPLATE, 0), QuadraticEngine(TARGET), [], 0.5)


def test_a_warm_up_of_the_whole_budget_is_refused():
    with pytest.raises(ConfigError, match="warmup"):
        AdamW(warmup=1.0)
