"""Every reward-only method on the engine: its adapter, saved and read again, scores what its mean scores."""

import pytest
import torch

from evolora.adapters import Adapter
from evolora.engine import Base, Engine
from evolora.search import Method, make_method, methods

SMALL = {"eggroll", "decomposed", "openai_es", "replicator", "random_search"}
SEARCHES = [name for name, method in methods().items() if issubclass(method, Method)]
CASES = [(architecture, torch.float32) for architecture in ("llama", "gpt2", "opt", "neox", "qwen3")]


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize(
    ("architecture", "dtype"), [*CASES, ("llama", torch.bfloat16)], ids=lambda value: str(value)
)
def test_the_adapter_that_comes_out_scores_what_the_mean_scores(
    make_tiny, char_tokenizer, tmp_path, name, architecture, dtype
):
    base = Base(make_tiny(architecture).to(dtype), char_tokenizer, architecture)
    engine, template = Engine(base), base.modules("all-linear")
    method = make_method(name, **({"population": 4} if name in SMALL else {}))
    state = method.init(template, 0, None, base.weight_norms(template) if method.needs_norms else None)
    prompts, answers = ["ab", "cde"], ["x", "yz"]
    for step in range(2):
        scores = engine.log_likelihood(method.ask(state), prompts, answers)
        assert bool(scores.isfinite().all())
        state, _ = method.tell(state, scores, (step + 1) / 4)
    mean = engine.log_likelihood(method.mean(state), prompts, answers)
    method.adapter(state, rank=32).save(tmp_path / "adapter")
    loaded = Adapter.load(tmp_path / "adapter", base)
    exact = dtype == torch.float32
    torch.testing.assert_close(
        engine.log_likelihood(loaded, prompts, answers), mean, rtol=0, atol=1e-3 if exact else 0.3
    )
