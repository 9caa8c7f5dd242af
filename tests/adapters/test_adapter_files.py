from __future__ import annotations

import copy
import json
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

from evolora.adapters import Adapter, Factors, read_adapter, write_adapter
from evolora.adapters.peft_files import _exactly

PROMPTS = torch.tensor([[3, 14, 15, 92, 6, 5], [35, 8, 9, 79, 3, 2]])
MASK = torch.ones_like(PROMPTS)


def logits(model):
    with torch.no_grad():
        return model(input_ids=PROMPTS, attention_mask=MASK).logits


def peft_adapter(model, folder, **config):
    """A PEFT adapter with random factors (PEFT starts at zero), saved; returns PEFT's model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = get_peft_model(copy.deepcopy(model), LoraConfig(task_type="CAUSAL_LM", **config)).eval()
        generator = torch.Generator().manual_seed(11)
        for name, parameter in wrapped.named_parameters():
            if "lora_magnitude" in name:
                parameter.data *= 1 + 0.3 * torch.rand(parameter.shape, generator=generator)
            elif "lora_" in name:
                parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
        wrapped.save_pretrained(str(folder))
    return wrapped


def peft_deltas(wrapped):
    """PEFT's own dense deltas, each turned to ``[d_out, d_in]``."""
    deltas = {}
    for name, layer in wrapped.base_model.model.named_modules():
        if hasattr(layer, "get_delta_weight"):
            delta = layer.get_delta_weight("default").detach()
            kind = type(layer.get_base_layer()).__name__
            deltas[name] = delta.T if kind in ("Conv1D", "Embedding") else delta
    return deltas


def load_with_peft(model, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PeftModel.from_pretrained(copy.deepcopy(model), str(folder)).eval()


def merged(model, adapter):
    """The model with the adapter's definition written into its weights, by brute force."""
    model = copy.deepcopy(model)
    for name, factors in adapter.modules.items():
        module = model.get_submodule(name)
        turned = type(module).__name__ in ("Conv1D", "Embedding")
        weight = module.weight.data.T if turned else module.weight.data
        weight = weight + factors.delta()
        if factors.magnitude is not None:
            weight = factors.magnitude[:, None] * weight / weight.norm(dim=1, keepdim=True)
        weight = weight.T if turned else weight
        module.weight = torch.nn.Parameter(weight.contiguous(), requires_grad=False)  # unties a tied head
    return model


LLAMA = {
    "plain": {"target_modules": ["q_proj", "v_proj"], "r": 4, "lora_alpha": 7},
    "rslora": {"target_modules": ["q_proj", "down_proj"], "r": 4, "lora_alpha": 7, "use_rslora": True},
    "rank_pattern": {
        "target_modules": ["q_proj", "v_proj", "up_proj"],
        "r": 4,
        "lora_alpha": 6,
        "rank_pattern": {"^model.layers.1.self_attn.q_proj": 2, "v_proj": 3},
    },
    "alpha_pattern": {
        "target_modules": ["q_proj", "v_proj"],
        "r": 4,
        "alpha_pattern": {r"layers.0.*_proj": 3, "q_proj": 20},
    },
    "both_patterns_rslora": {
        "target_modules": ["q_proj", "v_proj"],
        "r": 4,
        "rank_pattern": {"q_proj": 2},
        "alpha_pattern": {"q_proj": 5},
        "use_rslora": True,
    },
    "layers_to_transform": {"target_modules": ["q_proj", "o_proj"], "r": 2, "layers_to_transform": [0, 2]},
    "one_layer": {"target_modules": ["q_proj"], "r": 2, "layers_to_transform": 1, "layers_pattern": "layers"},
    "exclude_modules": {
        "target_modules": ["q_proj", "v_proj"],
        "r": 2,
        "exclude_modules": ["layers.1.self_attn.q_proj"],
    },
    "exclude_pattern": {"target_modules": ["q_proj"], "r": 2, "exclude_modules": r".*\.2\..*"},
    "regex": {"target_modules": r".*layers\.[01]\.mlp\.(up|gate)_proj", "r": 3},
    "all_linear": {"target_modules": "all-linear", "r": 2},
    "dora": {"target_modules": ["q_proj", "down_proj"], "r": 3, "lora_alpha": 5, "use_dora": True},
    "dora_rslora": {"target_modules": ["k_proj"], "r": 3, "use_dora": True, "use_rslora": True},
    "embedding": {"target_modules": ["embed_tokens", "q_proj"], "r": 3, "lora_alpha": 4},
    "head": {"target_modules": ["lm_head", "q_proj"], "r": 3, "lora_alpha": 4},
    "dropout": {"target_modules": ["q_proj"], "r": 2, "lora_dropout": 0.5},
    "gaussian": {"target_modules": ["q_proj"], "r": 2, "init_lora_weights": "gaussian"},
}


def assert_same_adapter(model, wrapped, folder, tmp_path):
    """What PEFT wrote is what we read; what we write back is what PEFT computes."""
    adapter = read_adapter(folder)
    dense = peft_deltas(wrapped)
    assert adapter.modules.keys() == dense.keys()
    for name, factors in adapter.modules.items():
        torch.testing.assert_close(factors.delta(), dense[name], rtol=1e-5, atol=1e-6)
    expected = logits(wrapped)
    assert (expected - logits(model)).abs().max() > 1e-2
    torch.testing.assert_close(logits(merged(model, adapter)), expected, rtol=1e-4, atol=1e-5)

    written = write_adapter(adapter, tmp_path / "written")
    torch.testing.assert_close(logits(load_with_peft(model, written)), expected, rtol=1e-5, atol=1e-5)
    assert read_adapter(written).specs == adapter.specs


@pytest.mark.parametrize("case", LLAMA)
def test_reads_what_peft_writes_and_peft_computes_what_we_write(case, tiny_llama, tmp_path):
    if case == "head":
        tiny_llama.lm_head.weight = torch.nn.Parameter(tiny_llama.lm_head.weight.detach().clone())
    wrapped = peft_adapter(tiny_llama, tmp_path / "peft", **LLAMA[case])
    assert_same_adapter(tiny_llama, wrapped, tmp_path / "peft", tmp_path)


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("fan_in_fan_out", [False, True])
def test_conv1d_of_gpt2_is_read_and_written_exactly(dora, fan_in_fan_out, tiny_gpt2, tmp_path):
    wrapped = peft_adapter(
        tiny_gpt2,
        tmp_path / "peft",
        target_modules=["c_attn", "mlp.c_proj"],
        r=3,
        lora_alpha=5,
        use_dora=dora,
        fan_in_fan_out=fan_in_fan_out,
    )
    assert_same_adapter(tiny_gpt2, wrapped, tmp_path / "peft", tmp_path)


def test_embeddings_of_gpt2_are_read_and_written_exactly(tiny_gpt2, tmp_path):
    wrapped = peft_adapter(tiny_gpt2, tmp_path / "peft", target_modules=["wte", "wpe", "c_attn"], r=3)
    assert read_adapter(tmp_path / "peft").modules["transformer.wpe"].kind == "embedding"
    assert_same_adapter(tiny_gpt2, wrapped, tmp_path / "peft", tmp_path)


def test_every_architecture_round_trips_through_peft(tiny_model, tmp_path):
    wrapped = peft_adapter(tiny_model, tmp_path / "peft", target_modules="all-linear", r=2, lora_alpha=3)
    assert_same_adapter(tiny_model, wrapped, tmp_path / "peft", tmp_path)


def mixed_ranks(model, seed=3):
    """Ranks 0 to 4, scales, an embedding: everything the canonical form has to express."""
    generator = torch.Generator().manual_seed(seed)
    modules = {}
    for i, (name, module) in enumerate(model.named_modules()):
        kind = type(module).__name__
        if kind not in ("Linear", "Embedding") or name == "lm_head":
            continue
        d_out, d_in = module.weight.shape if kind == "Linear" else module.weight.shape[::-1]
        rank = i % 5
        a, b = torch.randn(rank, d_in, generator=generator), torch.randn(d_out, rank, generator=generator)
        modules[name] = Factors(
            0.3 * a, 0.3 * b, 0.5 + i, None, "linear" if kind == "Linear" else "embedding"
        )
    return Adapter(modules, base=None, name="mixed")


def test_ranks_and_scales_that_differ_by_module_survive_peft(tiny_llama, tmp_path):
    adapter = mixed_ranks(tiny_llama)
    assert {f.rank for f in adapter.modules.values()} == {0, 1, 2, 3, 4}
    folder = write_adapter(adapter, tmp_path / "out")
    wrapped = load_with_peft(tiny_llama, folder)
    for name, delta in peft_deltas(wrapped).items():
        torch.testing.assert_close(delta, adapter.modules[name].delta(), rtol=1e-5, atol=1e-5)
    expected = logits(merged(tiny_llama, adapter))
    torch.testing.assert_close(logits(wrapped), expected, rtol=1e-4, atol=1e-4)


def test_the_canonical_config_meets_the_loading_rules_of_vllm(tiny_llama, tmp_path):
    config = json.loads(
        (write_adapter(mixed_ranks(tiny_llama), tmp_path / "out") / "adapter_config.json").read_text()
    )
    assert config["r"] == config["lora_alpha"] == 4
    assert config["alpha_pattern"] == config["rank_pattern"]
    assert config["bias"] == "none"
    assert not config["use_rslora"]
    assert not config["use_dora"]
    assert "modules_to_save" not in config
    assert config["target_modules"] == sorted(config["target_modules"])
    assert all(name.startswith("model.") for name in config["target_modules"])


def test_a_canonical_folder_reads_and_writes_back_to_the_same_bytes(tiny_llama, tmp_path):
    first = write_adapter(mixed_ranks(tiny_llama), tmp_path / "first")
    second = write_adapter(read_adapter(first), tmp_path / "second")
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name


def test_a_dora_adapter_survives_with_its_magnitudes(make_adapter, tmp_path):
    adapter = make_adapter({"layers.0.q": (5, 6, 2, "linear"), "layers.1.q": (5, 6, 1, "linear")}, dora=True)
    read = Adapter.load(adapter.save(tmp_path / "out"))
    for name, factors in adapter.modules.items():
        torch.testing.assert_close(read.modules[name].magnitude, factors.magnitude, rtol=0, atol=0)


names = st.lists(
    st.text(alphabet="ab.0_-+[(*$^|", min_size=1, max_size=6).filter(
        lambda s: s.strip(".") == s and ".." not in s
    ),
    min_size=2,
    max_size=6,
    unique=True,
)


@given(names)
@settings(max_examples=300, deadline=None)
def test_a_rank_pattern_matches_its_own_modules_and_no_other_whatever_their_names(paths):
    from peft.utils.other import get_pattern_key

    half = len(paths) // 2
    pattern = _exactly(paths[:half])
    for path in paths[:half]:
        assert get_pattern_key([pattern], path) == pattern
        assert get_pattern_key([pattern], f"longer.{path}") != pattern
    for path in paths[half:]:
        assert get_pattern_key([pattern], path) == path


@given(
    ranks=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    scale=st.floats(-8, 8).filter(lambda x: abs(x) > 1e-3),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_adapter_is_the_same_function_after_a_round_trip(
    ranks, scale, seed, make_adapter, tmp_path_factory
):
    shapes = {f"layers.{i}.q": (5, 6, rank, "linear") for i, rank in enumerate(ranks)}
    adapter = make_adapter(shapes, seed, scale=scale)
    read = read_adapter(write_adapter(adapter, tmp_path_factory.mktemp("trip") / "out"))
    assert list(read.modules) == sorted(shapes)
    for name, factors in adapter.modules.items():
        assert read.modules[name].rank == factors.rank
        assert torch.equal(read.modules[name].a, factors.a)
        assert torch.equal(read.modules[name].b, factors.b * factors.scale)
        assert read.modules[name].scale == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_become_float32(dtype, make_folder):
    key = "base_model.model.layers.0.q.lora_A.weight"
    value = torch.randn(2, 6).to(dtype)
    read = read_adapter(make_folder(tensors={key: value}))
    assert read.modules["layers.0.q"].a.dtype == torch.float32
    assert torch.equal(read.modules["layers.0.q"].a, value.float())


def test_what_was_read_does_not_change_with_the_file(make_folder):
    folder = make_folder()
    adapter = read_adapter(folder)
    before = [(factors.a.clone(), factors.b.clone()) for factors in adapter.modules.values()]
    path = folder / "adapter_model.safetensors"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(bytes(size))
    for factors, (a, b) in zip(adapter.modules.values(), before, strict=True):
        assert torch.equal(factors.a, a)
        assert torch.equal(factors.b, b)


def test_a_pickle_of_tensors_is_read_like_safetensors(make_folder):
    folder = make_folder()
    expected = read_adapter(folder)
    torch.save(load_file(folder / "adapter_model.safetensors"), folder / "adapter_model.bin")
    (folder / "adapter_model.safetensors").unlink()
    for name, factors in read_adapter(folder).modules.items():
        assert torch.equal(factors.a, expected.modules[name].a)
        assert torch.equal(factors.b, expected.modules[name].b)


def test_both_spellings_of_the_magnitude_are_read(make_folder):
    config = {"use_dora": True}
    plain = {f"base_model.model.layers.{i}.q.lora_magnitude_vector": torch.ones(5) + i for i in (0, 1)}
    long = {f"{key}.weight": value for key, value in plain.items()}
    read = [read_adapter(make_folder(f"f{i}", tensors, **config)) for i, tensors in enumerate((plain, long))]
    for adapter in read:
        assert torch.equal(adapter.modules["layers.1.q"].magnitude, torch.full((5,), 2.0))


def test_provenance_and_base_survive(make_adapter, tmp_path):
    adapter = make_adapter({"layers.0.q": (5, 6, 2, "linear")}, name="child")
    provenance = {"parents": ["a", "b"], "seed": 3, "method": "eggroll", "lr": 0.5, "error": float("nan")}
    adapter = Adapter(adapter.modules, "some/base", "child", provenance)
    read = Adapter.load(adapter.save(tmp_path / "out"))
    assert (read.base, read.name) == ("some/base", "child")
    assert read.provenance == {**provenance, "error": None}


def test_an_adapter_of_others_is_named_after_its_folder(make_folder):
    assert read_adapter(make_folder("sentiment")).name == "sentiment"


class OneBase:
    def __init__(self, model):
        self.model = model

    def check_specs(self, specs, base_name, base_fingerprint, where):
        pass


def test_a_stored_copy_of_the_embedding_must_equal_the_base(tiny_llama, tmp_path):
    peft_adapter(tiny_llama, tmp_path / "peft", target_modules=["embed_tokens", "q_proj"], r=2)
    assert any("base_layer" in key for key in load_file(tmp_path / "peft" / "adapter_model.safetensors"))
    assert "model.embed_tokens" in read_adapter(tmp_path / "peft", OneBase(tiny_llama)).modules
    tiny_llama.model.embed_tokens.weight.data[7] += 1
    with pytest.raises(Exception, match=r"its own weight of model\.embed_tokens"):
        read_adapter(tmp_path / "peft", OneBase(tiny_llama))
