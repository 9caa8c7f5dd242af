import pytest
import torch
from torch.func import functional_call

from evolora.adapters import Adapter, Factors
from evolora.errors import InputError

PROMPTS = ["ab", "a much longer prompt ->", "x: y"]
ANSWERS = [" c", " d e f", " z"]
SCALE = 0.7


def leaves(base, targets="all-linear", layers=None, rank=2):
    generator = torch.Generator().manual_seed(0)
    template = base.modules(targets, layers)
    a = {
        n: (torch.randn(rank, s.d_in, generator=generator) * 0.3).requires_grad_()
        for n, s in template.items()
    }
    b = {
        n: (torch.randn(s.d_out, rank, generator=generator) * 0.3).requires_grad_()
        for n, s in template.items()
    }
    return a, b


def dense_loss(base, a, b):
    """The same through weights W + s B A, by torch's own functional call, one row at a time."""
    weights = dict(base.model.named_parameters())
    for name in a:
        delta = SCALE * b[name] @ a[name]
        weight = weights[f"{name}.weight"]
        embedding = base.structure.specs[name].kind == "embedding"
        transposed = embedding or type(base.model.get_submodule(name)).__name__ == "Conv1D"
        weights[f"{name}.weight"] = weight + (delta.T if transposed else delta)
    total, count = 0.0, 0
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        start, end = base.encode(prompt), [*base.encode(answer, answer=True), base.end_tokens[0]]
        out = functional_call(
            base.model, weights, (), {"input_ids": torch.tensor([start + end])}, tie_weights=False
        )
        chosen = torch.log_softmax(out.logits[0, len(start) - 1 : -1], -1)
        total = total - chosen.gather(1, torch.tensor(end)[:, None]).sum()
        count += len(end)
    return total / count


@pytest.mark.parametrize(
    ("targets", "layers"), [("all-linear", None), ("attention", "top:1"), ("embedding", None)]
)
def test_value_and_gradients_are_those_of_dense_weights(engine, targets, layers):
    if targets == "embedding":
        targets = [next(p for p, s in engine.base.structure.specs.items() if s.kind == "embedding")]
    a, b = leaves(engine.base, targets, layers)
    loss = engine.training_loss(a, b, SCALE, PROMPTS, ANSWERS)
    expected = dense_loss(engine.base, a, b)
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    every = [*a.values(), *b.values()]
    found = torch.autograd.grad(loss, every)
    wanted = torch.autograd.grad(expected, every)
    for one, other in zip(found, wanted, strict=True):
        assert other.abs().max() > 0
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-3)


def test_the_loss_is_the_mean_negative_log_likelihood_of_a_token(engine):
    a, b = leaves(engine.base)
    factors = {n: Factors(a[n].detach(), b[n].detach(), SCALE) for n in a}
    for stop in (None, "\n"):
        scores = engine.score(Adapter(factors), PROMPTS, ANSWERS, stop=stop)
        loss = engine.training_loss(a, b, SCALE, PROMPTS, ANSWERS, stop=stop).item()
        assert loss == pytest.approx(
            -scores.log_likelihood.sum().item() / scores.tokens.sum().item(), rel=1e-5
        )


def test_the_base_gets_no_gradients(engine):
    engine.training_loss(*leaves(engine.base), SCALE, PROMPTS, ANSWERS).backward()
    assert all(p.grad is None and not p.requires_grad for p in engine.base.model.parameters())


def test_training_on_nothing_is_refused(engine):
    with pytest.raises(InputError, match="nothing to train on"):
        engine.training_loss(*leaves(engine.base), SCALE, [], [])
    with pytest.raises(InputError, match="nothing to train on"):
        engine.training_loss({}, {}, SCALE, PROMPTS, ANSWERS)
