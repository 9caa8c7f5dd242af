import pytest
import torch
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from evolora.engine.delta_gradients import delta_gradients

PROMPTS = ["ab", "a much longer prompt ->", "x: y"]
ANSWERS = [" c", " d e f", " z"]


def deltas_on(base, targets="all-linear", layers=None):
    generator = torch.Generator().manual_seed(0)
    return {
        name: 0.1 * torch.randn(spec.d_out, spec.d_in, generator=generator)
        for name, spec in base.modules(targets, layers).items()
    }


def by_autograd(base, deltas):
    """The same through weights W + D, by torch's own functional call, one row at a time."""
    leaves = {name: delta.clone().requires_grad_() for name, delta in deltas.items()}
    weights = dict(base.model.named_parameters())
    for name, leaf in leaves.items():
        transposed = base.structure.specs[name].kind == "embedding"
        transposed = transposed or type(base.model.get_submodule(name)).__name__ == "Conv1D"
        weights[f"{name}.weight"] = weights[f"{name}.weight"] + (leaf.T if transposed else leaf)
    total = 0.0
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        start, end = base.encode(prompt), [*base.encode(answer, answer=True), base.end_tokens[0]]
        out = functional_call(
            base.model, weights, (), {"input_ids": torch.tensor([start + end])}, tie_weights=False
        )
        log_p = torch.log_softmax(out.logits[0, len(start) - 1 : -1], -1)
        total = total + log_p.gather(1, torch.tensor(end)[:, None]).mean() / len(PROMPTS)
    total.backward()
    return total.item(), {name: leaf.grad for name, leaf in leaves.items()}


@pytest.mark.parametrize("most", [4096, 40], ids=["at once", "row by row"])
@pytest.mark.parametrize(
    ("targets", "layers"), [("all-linear", None), ("attention", "top:1"), ("embedding", None)]
)
def test_reward_and_gradients_are_those_of_dense_weights(engine, targets, layers, most):
    engine.max_tokens = most
    if targets == "embedding":
        targets = [next(p for p, s in engine.base.structure.specs.items() if s.kind == "embedding")]
    deltas = deltas_on(engine.base, targets, layers)
    reward, found = delta_gradients(engine, deltas, engine.base.text.pairs(PROMPTS, ANSWERS))
    wanted, gradients = by_autograd(engine.base, deltas)
    assert reward == pytest.approx(wanted, rel=1e-5)
    for name, gradient in gradients.items():
        assert gradient.abs().max() > 0
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-3)
    assert all(p.grad is None for p in engine.base.model.parameters())


def test_the_backward_pass_is_in_the_ledger_as_torch_counts_it(engine):
    deltas = deltas_on(engine.base, layers="top:1")
    with FlopCounterMode(display=False) as counter:
        delta_gradients(engine, deltas, engine.base.text.pairs(PROMPTS, ANSWERS))
    assert engine.ledger.total_flops == pytest.approx(counter.get_total_flops(), rel=1e-6)
