"""Per-token log-probabilities against scores, samples and torch's FLOP counter."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch.utils.flop_counter import FlopCounterMode

from evolora.adapters import Adapter, Copies, Factors
from evolora.engine import Engine, Ledger
from evolora.errors import InputError, ModelError

PROMPTS = ["ab", "a much longer prompt ->", "x: y"]
ANSWERS = [" c", " d e f", " z"]
SCALE = 0.7


def leaves(base, targets="all-linear", layers=None, rank=2):
    generator = torch.Generator().manual_seed(0)
    a, b = {}, {}
    for name, spec in base.modules(targets, layers).items():
        a[name] = (torch.randn(rank, spec.d_in, generator=generator) * 0.3).requires_grad_()
        b[name] = (torch.randn(spec.d_out, rank, generator=generator) * 0.3).requires_grad_()
    return a, b


def adapter_of(a, b):
    return Adapter({n: Factors(a[n].detach(), b[n].detach(), SCALE) for n in a})


@pytest.mark.parametrize(("targets", "layers"), [("all-linear", None), ("attention", "top:1")])
def test_summed_over_a_completion_they_are_its_score(engine, targets, layers):
    a, b = leaves(engine.base, targets, layers)
    pairs = engine.base.text.pairs(PROMPTS, ANSWERS)
    found = engine.log_probs(a, b, SCALE, pairs)
    assert found.shape == (3, 7)
    assert (found != 0).sum(1).tolist() == [len(answer) for _, answer in pairs]
    wanted = engine.log_likelihood(adapter_of(a, b), PROMPTS, ANSWERS)[0]
    torch.testing.assert_close(found.sum(1), wanted, atol=1e-5, rtol=1e-5)
    base = engine.log_probs({}, {}, SCALE, pairs)
    torch.testing.assert_close(base.sum(1), engine.log_likelihood(None, PROMPTS, ANSWERS)[0])
    assert not base.requires_grad


def test_the_mean_of_a_token_is_the_training_loss_with_its_gradient(engine):
    a, b = leaves(engine.base)
    pairs = engine.base.text.pairs(PROMPTS, ANSWERS)
    count = sum(len(answer) for _, answer in pairs)
    one = engine.training_loss(a, b, SCALE, PROMPTS, ANSWERS)
    other = -engine.log_probs(a, b, SCALE, pairs).sum() / count
    torch.testing.assert_close(one, other)
    every = [*a.values(), *b.values()]
    for first, second in zip(torch.autograd.grad(one, every), torch.autograd.grad(other, every), strict=True):
        torch.testing.assert_close(first, second, atol=1e-6, rtol=1e-4)


def test_greedy_tokens_are_the_most_likely_ones(engine, make_adapter):
    adapter = make_adapter(1)
    (found,) = engine.generate_tokens(adapter, PROMPTS, max_new_tokens=5)
    prompts = engine.base.text.prompts(PROMPTS)
    a = {n: f.a for n, f in adapter.modules.items()}
    b = {n: f.b for n, f in adapter.modules.items()}
    for prompt, tokens in zip(prompts, found, strict=True):
        for last in range(len(tokens)):
            others = [(prompt, [*tokens[:last], word]) for word in range(97)]
            assert engine.log_probs(a, b, 0.5, others)[:, last].argmax() == tokens[last]


@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_samples_come_as_often_as_their_probability_says(llama, make_adapter, temperature):
    engine, count = Engine(llama), 3000
    adapter = make_adapter(3, base=llama)
    names = Copies(adapter, [f"sample-{i}" for i in range(count)])
    found = engine.generate_tokens(names, ["ab ->"], max_new_tokens=1, temperature=temperature, seed=5)
    (prompt,) = llama.text.prompts(["ab ->"])
    a = {n: f.a for n, f in adapter.modules.items()}
    b = {n: f.b for n, f in adapter.modules.items()}
    pairs = [(prompt, [word]) for word in range(97)]
    probability = engine.log_probs(a, b, 0.5, pairs, temperature=temperature)[:, 0].double().exp().numpy()
    assert probability.sum() == pytest.approx(1, abs=1e-5)
    observed = np.bincount([row[0][0] for row in found], minlength=97)
    assert probability.min() * count > 3
    assert chisquare(observed, probability / probability.sum() * count).pvalue > 1e-3


def test_tokens_are_those_of_the_texts_and_the_end_that_was_sampled_is_there(llama, make_adapter):
    engine, options = Engine(llama), {"temperature": 2.0, "max_new_tokens": 40, "seed": 1}
    members, ends = [make_adapter(seed, base=llama) for seed in range(20)], llama.end_tokens
    found = engine.generate_tokens(members, PROMPTS, **options)
    assert engine.generate(members, PROMPTS, **options) == [
        [llama.text.completion(tokens) for tokens in row] for row in found
    ]
    rows = [tokens for row in found for tokens in row]
    ended = [tokens for tokens in rows if tokens[-1] in ends]
    assert 5 < len(ended) < len(rows)
    assert all(len(tokens) == 40 for tokens in rows if tokens[-1] not in ends)
    assert not any(token in ends for tokens in rows for token in tokens[:-1])


def test_a_completion_ends_with_the_token_that_stopped_it(llama):
    engine, stop = Engine(llama), "e"
    (stop_token,) = llama.encode(stop, answer=True)
    found = engine.generate_tokens(
        None, ["ab ->"] * 30, stop=stop, temperature=1.5, max_new_tokens=60, seed=3
    )[0]
    stopped = [tokens for tokens in found if tokens[-1] == stop_token]
    assert len(stopped) > 5
    assert all(stop_token not in tokens[:-1] for tokens in found)
    assert all(llama.end_tokens[0] not in tokens for tokens in stopped)


def test_a_stop_of_several_tokens_ends_the_tokens_that_count(llama):
    tokens = llama.encode("abcdcd", answer=True)
    assert llama.text.through(tokens, "cd") == tokens[:4]
    assert llama.text.through(tokens, "x") == llama.text.through(tokens, None) == tokens
    assert llama.text.through(tokens, "a") == tokens[:1]


def test_copies_compute_what_the_adapter_does_and_sample_apart(engine, make_adapter):
    adapter = make_adapter(2)
    copies = Copies(adapter, ["one", "two", "three"])
    alone = engine.log_likelihood(adapter, PROMPTS, ANSWERS)
    torch.testing.assert_close(engine.log_likelihood(copies, PROMPTS, ANSWERS), alone.expand(3, -1))
    options = {"temperature": 1.5, "max_new_tokens": 12, "seed": 7}
    drawn = engine.generate_tokens(copies, PROMPTS, **options)
    assert len({str(row) for row in drawn}) == 3
    twins = [Adapter(adapter.modules, name=name) for name in copies.ids]
    assert drawn == engine.generate_tokens(twins, PROMPTS, **options)
    assert drawn == Engine(engine.base, max_tokens=30).generate_tokens(copies, PROMPTS, **options)


def test_copies_of_dora_are_refused(llama, make_adapter):
    copies = Copies(make_adapter(1, dora=True, base=llama), ["one", "two"])
    with pytest.raises(ModelError, match="DoRA cannot stand"):
        Engine(llama).generate(copies, PROMPTS)


@pytest.mark.parametrize("layers", [None, "top:1", "0-0"])
@pytest.mark.parametrize("targets", ["all-linear", "attention"])
def test_they_cost_what_torch_counts(engine, targets, layers):
    a, b = leaves(engine.base, targets, layers)
    pairs = engine.base.text.pairs(PROMPTS, ANSWERS)
    with FlopCounterMode(display=False) as counter:
        loss = engine.log_probs(a, b, SCALE, pairs, temperature=0.9).sum()
        forward = counter.get_total_flops()
        loss.backward()
    assert forward == pytest.approx(engine.ledger.forward_flops, rel=0.01)
    assert counter.get_total_flops() - forward == pytest.approx(engine.ledger.backward_flops, rel=0.01)


def test_without_a_graph_no_backward_pass_is_counted(engine):
    a, b = leaves(engine.base)
    pairs = engine.base.text.pairs(PROMPTS, ANSWERS)
    for factors in ((a, b), ({}, {})):
        engine.ledger = Ledger()
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            engine.log_probs(*factors, SCALE, pairs)
        assert counter.get_total_flops() == pytest.approx(engine.ledger.forward_flops, rel=0.01)
        assert engine.ledger.backward_flops == 0


def test_no_rows_are_refused(llama):
    with pytest.raises(InputError, match="nothing to train on"):
        Engine(llama).log_probs({}, {}, SCALE, [])
