"""A population in one batch computes what PEFT computes one adapter at a time, on every architecture."""

import pytest
import torch

from evolora.adapters import Stacked

PROMPTS = ["sort: d b a ->", "up: k", "a longer prompt, to be padded:"]
ANSWERS = [" a b d", " K", " yes"]


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_scores_equal_peft_one_by_one_for_mixed_ranks_and_module_sets(
    engine, make_adapter, peft_model, row_by_row, dora
):
    adapters = [
        make_adapter(1, rank=1, targets="attention"),
        make_adapter(2, rank=3, dora=dora),
        make_adapter(3, rank=2, targets="mlp", layers="top:1"),
    ]
    scores = engine.score(adapters, PROMPTS, ANSWERS)
    for index, adapter in enumerate(adapters):
        model = peft_model(engine.base, adapter)
        expected, exact = row_by_row(model, engine.base, PROMPTS, ANSWERS)
        torch.testing.assert_close(scores.log_likelihood[index], expected, atol=1e-4, rtol=1e-4)
        assert scores.exact[index].tolist() == exact


def test_greedy_generation_equals_peft_generate(engine, make_adapter, peft_model, greedy):
    adapters = [make_adapter(1, rank=4), make_adapter(2, rank=1, layers="top:1"), make_adapter(5, dora=True)]
    texts = engine.generate(adapters, PROMPTS, max_new_tokens=9)
    for index, adapter in enumerate(adapters):
        model = peft_model(engine.base, adapter)
        assert texts[index] == [greedy(model, engine.base, prompt, 9) for prompt in PROMPTS]


def test_embedding_and_head_adapters_equal_peft(engine, make_adapter, peft_model, row_by_row):
    table = next(p for p, s in engine.base.structure.specs.items() if s.kind == "embedding")
    head = engine.base.structure.head
    adapters = [make_adapter(7, targets=[table]), make_adapter(8), make_adapter(9, targets=[head])]
    scores = engine.score(adapters, PROMPTS, ANSWERS)
    for index, adapter in enumerate(adapters):
        model = peft_model(engine.base, adapter)
        expected, _ = row_by_row(model, engine.base, PROMPTS, ANSWERS)
        torch.testing.assert_close(scores.log_likelihood[index], expected, atol=1e-4, rtol=1e-4)


def test_batched_equals_one_by_one(engine, make_adapter):
    adapters = [make_adapter(seed, rank=1 + seed % 3, dora=seed == 4) for seed in range(6)]
    together = engine.score(adapters, PROMPTS, ANSWERS).log_likelihood
    alone = torch.cat([engine.score(adapter, PROMPTS, ANSWERS).log_likelihood for adapter in adapters])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    selected = engine.score(Stacked(adapters).select([4, 1]), PROMPTS, ANSWERS).log_likelihood
    torch.testing.assert_close(selected, together[[4, 1]], atol=1e-5, rtol=1e-5)


def test_each_module_that_an_adapter_names_changes_the_output(engine, make_adapter):
    base = engine.base
    paths = list(base.structure.specs)
    assert len(paths) >= len(base.modules()) + 2  # the embedding and the head too
    members = [make_adapter(1, targets=[path]) for path in paths]
    values = engine.log_likelihood(members, PROMPTS, ANSWERS)
    plain = engine.log_likelihood(None, PROMPTS, ANSWERS)
    for path, row in zip(paths, values, strict=True):
        assert (row - plain[0]).abs().max() > 1e-4, path
