"""A population in one batch computes what PEFT computes one adapter at a time, on every architecture."""

import copy

import pytest
import torch
from peft import PeftModel

from evolora.adapters import Stacked

PROMPTS = ["sort: d b a ->", "up: k", "a longer prompt, to be padded:"]
ANSWERS = [" a b d", " K", " yes"]


def peft_scores(base, adapter, folder):
    adapter.save(folder)
    model = PeftModel.from_pretrained(copy.deepcopy(base.model), folder).eval()
    totals, exact = [], []
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        start, end = base.encode(prompt), [*base.encode(answer, answer=True), base.end_tokens[0]]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([start + end])).logits[0, len(start) - 1 : -1]
        chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(end)[:, None])
        totals.append(chosen.sum())
        exact.append(bool((logits.argmax(-1) == torch.tensor(end)).all()))
    return torch.stack(totals), torch.tensor(exact), model


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_scores_equal_peft_one_by_one_for_mixed_ranks_and_module_sets(engine, make_adapter, tmp_path, dora):
    adapters = [
        make_adapter(1, rank=1, targets="attention"),
        make_adapter(2, rank=3, dora=dora),
        make_adapter(3, rank=2, targets="mlp", layers="top:1"),
    ]
    scores = engine.score(adapters, PROMPTS, ANSWERS)
    for index, adapter in enumerate(adapters):
        expected, exact, _ = peft_scores(engine.base, adapter, tmp_path / str(index))
        torch.testing.assert_close(scores.log_likelihood[index], expected, atol=1e-4, rtol=1e-4)
        assert scores.exact[index].tolist() == exact.tolist()


def test_greedy_generation_equals_peft_generate(engine, make_adapter, tmp_path):
    adapters = [make_adapter(1, rank=4), make_adapter(2, rank=1, layers="top:1"), make_adapter(5, dora=True)]
    texts = engine.generate(adapters, PROMPTS, max_new_tokens=9)
    for index, adapter in enumerate(adapters):
        _, _, model = peft_scores(engine.base, adapter, tmp_path / str(index))
        for prompt, text in zip(PROMPTS, texts[index], strict=True):
            ids = torch.tensor([engine.base.encode(prompt)])
            out = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=9,
                do_sample=False,
                pad_token_id=0,
            )
            new = out[0, ids.shape[1] :].tolist()
            new = new[: new.index(engine.base.end_tokens[0])] if engine.base.end_tokens[0] in new else new
            assert text == engine.base.tokenizer.decode(new, skip_special_tokens=True)


def test_embedding_adapters_equal_peft(engine, make_adapter, tmp_path):
    table = next(p for p, s in engine.base.structure.specs.items() if s.kind == "embedding")
    adapters = [make_adapter(7, targets=[table.rsplit(".", 1)[-1]]), make_adapter(8)]
    scores = engine.score(adapters, PROMPTS, ANSWERS)
    for index, adapter in enumerate(adapters):
        expected, _, _ = peft_scores(engine.base, adapter, tmp_path / str(index))
        torch.testing.assert_close(scores.log_likelihood[index], expected, atol=1e-4, rtol=1e-4)


def test_batched_equals_one_by_one(engine, make_adapter):
    adapters = [make_adapter(seed, rank=1 + seed % 3, dora=seed == 4) for seed in range(6)]
    together = engine.score(adapters, PROMPTS, ANSWERS).log_likelihood
    alone = torch.cat([engine.score(adapter, PROMPTS, ANSWERS).log_likelihood for adapter in adapters])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
    selected = engine.score(Stacked(adapters).select([4, 1]), PROMPTS, ANSWERS).log_likelihood
    torch.testing.assert_close(selected, together[[4, 1]], atol=1e-5, rtol=1e-5)
