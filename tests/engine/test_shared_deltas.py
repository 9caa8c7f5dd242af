import copy

import pytest
import torch

from evolora.adapters import Adapter, Factors, Stacked
from evolora.engine import Base, Engine
from evolora.errors import AdapterError, ModelError

PROMPTS = ["ab", "a much longer prompt ->", "x: y"]
ANSWERS = [" c", " d e f", " z"]


class OnDeltas(Stacked):
    """Adapters on top of dense deltas that all of them share."""

    def __init__(self, adapters, shared):
        super().__init__(adapters, [str(i) for i in range(len(adapters))])
        self.shared = shared


def deltas(base, targets="all-linear", layers=None):
    generator = torch.Generator().manual_seed(3)
    return {
        name: 0.1 * torch.randn(spec.d_out, spec.d_in, generator=generator)
        for name, spec in base.modules(targets, layers).items()
    }


def with_weights(base, shared):
    """A copy of the base whose weights are W + D."""
    model = copy.deepcopy(base.model)
    for name, delta in shared.items():
        module = model.get_submodule(name)
        stored = (
            delta if module.weight.shape == delta.shape and type(module).__name__ == "Linear" else delta.T
        )
        module.weight = torch.nn.Parameter((module.weight.float() + stored).to(module.weight.dtype))
    return Base(model, base.tokenizer, "explicit")


@pytest.mark.parametrize("layers", [None, "top:1"])
def test_a_shared_delta_is_a_change_of_the_weights(base, make_adapter, layers):
    shared = deltas(base, layers=layers)
    members = [make_adapter(seed, layers=layers) for seed in range(3)]
    engine, explicit = Engine(base), Engine(with_weights(base, shared))
    found = engine.score(OnDeltas(members, shared), PROMPTS, ANSWERS)
    expected = explicit.score(members, PROMPTS, ANSWERS)
    torch.testing.assert_close(found.log_likelihood, expected.log_likelihood, atol=1e-4, rtol=1e-4)
    assert torch.equal(found.exact, expected.exact)
    assert engine.generate(OnDeltas(members, shared), PROMPTS) == explicit.generate(members, PROMPTS)


def test_an_embedding_and_the_head_take_shared_deltas(base, make_adapter):
    names = [n for n, s in base.structure.specs.items() if s.kind == "embedding"] + [base.structure.head]
    shared = deltas(base, names)
    found = Engine(base).log_likelihood(OnDeltas([make_adapter(1)], shared), PROMPTS, ANSWERS)
    expected = Engine(with_weights(base, shared)).log_likelihood(make_adapter(1), PROMPTS, ANSWERS)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_half_precision_keeps_a_delta_that_its_weights_would_swallow(base):
    half = Base(copy.deepcopy(base.model).bfloat16(), base.tokenizer, "half")
    exact = Base(copy.deepcopy(half.model).float(), base.tokenizer, "exact")
    shared = {name: 0.02 * delta for name, delta in deltas(base).items()}
    nothing = [
        Adapter(
            {n: Factors(torch.zeros(1, s.d_in), torch.zeros(s.d_out, 1)) for n, s in base.modules().items()}
        )
    ]

    def effect(of, population):
        engine = Engine(of)
        return engine.log_likelihood(population, PROMPTS, ANSWERS) - engine.log_likelihood(
            None, PROMPTS, ANSWERS
        )

    wanted = effect(exact, OnDeltas(nothing, shared))
    found = effect(half, OnDeltas(nothing, shared))
    assert wanted.abs().min() > 0
    assert (found - wanted).abs().mean() < 0.5 * wanted.abs().mean() + 0.05


def test_deltas_that_follow_each_other_are_told_apart(base, make_adapter):
    engine, adapter = Engine(base), make_adapter(1)
    first, second = deltas(base), {name: -delta for name, delta in deltas(base).items()}
    values = [
        engine.log_likelihood(OnDeltas([adapter], d), PROMPTS, ANSWERS) for d in (first, second, first, {})
    ]
    assert torch.equal(values[0], values[2])
    assert not torch.equal(values[0], values[1])
    assert torch.equal(values[3], engine.log_likelihood(adapter, PROMPTS, ANSWERS))


def test_deltas_that_do_not_fit_are_refused(base, make_adapter):
    name = next(iter(base.modules()))
    for shared in ({name: torch.zeros(3, 3)}, {"nowhere": torch.zeros(3, 3)}):
        with pytest.raises(AdapterError, match="does not fit"):
            Engine(base).score(OnDeltas([make_adapter(1)], shared), PROMPTS, ANSWERS)
    with pytest.raises(ModelError, match="DoRA cannot stand on"):
        Engine(base).score(OnDeltas([make_adapter(1, dora=True)], deltas(base)), PROMPTS, ANSWERS)
