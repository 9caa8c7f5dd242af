import copy

import pytest
import torch
from peft import PeftModel

from evolora.adapters import Adapter, Factors
from evolora.engine import Base, Engine


@pytest.fixture
def base(tiny_model, char_tokenizer):
    return Base(tiny_model, char_tokenizer, "tiny")


@pytest.fixture
def engine(base):
    return Engine(base)


@pytest.fixture
def llama(tiny_llama, char_tokenizer):
    return Base(tiny_llama, char_tokenizer, "tiny")


@pytest.fixture
def make_adapter(request):
    """Random adapters: any rank, targets, layers, DoRA or not; large enough to change every logit."""

    def make(seed, rank=2, targets="all-linear", layers=None, dora=False, size=0.3, base=None):
        base = base or request.getfixturevalue("base")
        generator = torch.Generator().manual_seed(seed)
        modules = {}
        for path, spec in base.modules(targets, layers).items():
            a = torch.randn(rank, spec.d_in, generator=generator) * spec.d_in**-0.5
            b = torch.randn(spec.d_out, rank, generator=generator) * size
            magnitude = torch.rand(spec.d_out, generator=generator) + 0.2 if dora else None
            modules[path] = Factors(a, b, 0.5, magnitude, spec.kind)
        return Adapter(modules, name=f"random-{seed}")

    return make


@pytest.fixture
def peft_model(tmp_path):
    """The base with an adapter as PEFT loads it from disk."""

    def load(base, adapter):
        folder = adapter.save(tmp_path / adapter.name, overwrite=True)
        return PeftModel.from_pretrained(copy.deepcopy(base.model), folder).eval()

    return load


@pytest.fixture
def row_by_row():
    """Log-likelihoods [P] and exact matches of a plain model, one unpadded row at a time."""

    def score(model, base, prompts, answers):
        totals, exact = [], []
        for prompt, answer in zip(prompts, answers, strict=True):
            start, end = base.encode(prompt), [*base.encode(answer, answer=True), base.end_tokens[0]]
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([start + end])).logits[0, len(start) - 1 : -1]
            chosen = torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(end)[:, None])
            totals.append(chosen.sum())
            exact.append(bool((logits.argmax(-1) == torch.tensor(end)).all()))
        return torch.stack(totals), exact

    return score


@pytest.fixture
def greedy():
    """What a model of transformers or PEFT generates for one prompt, the end removed."""

    def complete(model, base, prompt, new):
        ids, end = torch.tensor([base.encode(prompt)]), base.end_tokens[0]
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
        )
        tokens = out[0, ids.shape[1] :].tolist()
        tokens = tokens[: tokens.index(end)] if end in tokens else tokens
        return base.tokenizer.decode(tokens, skip_special_tokens=True)

    return complete
