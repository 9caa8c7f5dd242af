"""The promises that are about the real, bundled model."""

import hashlib
import json
from pathlib import Path

import pytest
import torch

import evolora as ev
from evolora.adapters import Adapter, Factors

pytestmark = pytest.mark.model

VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


@pytest.fixture(scope="module")
def base():
    return ev.load_base("smollm2-135m")


@pytest.fixture(scope="module")
def task():
    return ev.load_task("demo", test=12)


def weights_digest(model):
    digest = hashlib.blake2b()
    for name, parameter in model.named_parameters():
        digest.update(name.encode() + parameter.numpy().tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def outcome(base, task):
    method = ev.Eggroll(population=4, sigma=0.03, lr=1.0, export_rank=16)
    return ev.adapt(base, task, method=method, layers="top:2", batch=4, budget=ev.Budget(steps=3))


def test_no_search_writes_to_the_base(base, task):
    before = weights_digest(base.model)
    ev.adapt(base, task, method=ev.Eggroll(population=2), layers="top:1", batch=2, budget=ev.Budget(steps=1))
    ev.adapt(base, task, method=ev.AdamW(rank=2), layers="top:1", batch=2, budget=ev.Budget(steps=1))
    assert weights_digest(base.model) == before


def test_peft_loads_the_adapter_and_answers_the_same(base, task, outcome, tmp_path):
    from peft import PeftModel

    folder = outcome.adapter.save(tmp_path / "adapter")
    model = PeftModel.from_pretrained(base.model, folder).eval()
    try:
        for example, said in zip(task.test, outcome.adapted.completions, strict=True):
            ids = torch.tensor([base.encode(example.prompt)])
            mask = torch.ones_like(ids)
            out = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=6, do_sample=False)
            text = base.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
            assert text.split("\n")[0] == said
    finally:
        model.unload()


def test_the_adapter_meets_vllms_loading_rules(outcome, tmp_path):
    config = json.loads((outcome.adapter.save(tmp_path / "a") / "adapter_config.json").read_text())
    assert config["r"] in VLLM_RANKS
    assert config["lora_alpha"] == config["r"]
    assert config["bias"] == "none"
    assert not config.get("modules_to_save")
    assert not config["use_dora"]
    assert not config["use_rslora"]
    names = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert {target.rsplit(".", 1)[-1] for target in config["target_modules"]} <= names
    assert config["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"


def random_adapter(base, seed, layers, rank=2):
    generator = torch.Generator().manual_seed(seed)
    modules = {
        path: Factors(
            torch.randn(rank, spec.d_in, generator=generator) * spec.d_in**-0.5,
            torch.randn(spec.d_out, rank, generator=generator) * 0.02,
        )
        for path, spec in base.modules("all-linear", layers).items()
    }
    return Adapter(modules, name=f"random-{seed}")


@pytest.mark.parametrize("layers", ["top:10", "top:5"])
def test_sharing_the_frozen_prefix_changes_no_bit_of_an_answer(base, task, layers):
    adapters = [random_adapter(base, seed, layers) for seed in range(4)]
    prompts = [e.prompt for e in task.test]
    answers = [e.answer for e in task.test]
    with_reuse, without = ev.Engine(base), ev.Engine(base, prefix_reuse=False)
    one = with_reuse.score(adapters, prompts, answers, stop="\n")
    two = without.score(adapters, prompts, answers, stop="\n")
    torch.testing.assert_close(one.log_likelihood, two.log_likelihood, rtol=1e-5, atol=1e-4)
    assert torch.equal(one.exact, two.exact)
    assert with_reuse.generate(adapters, prompts, max_new_tokens=6) == without.generate(
        adapters, prompts, max_new_tokens=6
    )
    assert with_reuse.ledger.forward_flops < 0.7 * without.ledger.forward_flops


def test_teacher_forced_exactness_is_greedy_decoding(base, task):
    engine = ev.Engine(base)
    prompts, answers = [e.prompt for e in task.train[:40]], [e.answer for e in task.train[:40]]
    exact = engine.score(None, prompts, answers, stop="\n").exact[0].tolist()
    said = engine.generate(None, prompts, max_new_tokens=6, stop="\n")[0]
    assert exact == [text == answer for text, answer in zip(said, answers, strict=True)]
    assert 0 < sum(exact) < 40


def test_the_numbers_in_the_readme_are_the_recorded_ones():
    root = Path(__file__).parents[1]
    record = json.loads((root / "results" / "demo.json").read_text())
    readme = (root / "README.md").read_text()
    assert record["holds"]
    for run in record["runs"]:
        low, high = run["difference"]["ci"]
        row = (
            f"| {run['seed']} | {run['base']['accuracy']:.3f} | {run['adapted']['accuracy']:.3f} | "
            f"{run['difference']['value']:+.3f} [{low:.3f}, {high:.3f}] |"
        )
        assert row in readme
