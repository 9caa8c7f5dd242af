"""Models with a twist: they compute what PEFT and transformers compute, or are refused by name."""

import pytest
import torch
import transformers
from torch import nn

from evolora.engine import Base, Engine
from evolora.errors import ModelError

PROMPTS = ["ab", "a much longer prompt -> with a tail", "x: y"]
ANSWERS = [" c", " d e f", " z"]

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MODELS = {
    # soft caps on attention and logits, two norms, every second layer with a window
    "Gemma2": {
        "head_dim": 8,
        "sliding_window": 6,
        "final_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 8,
    },
    "Gemma3Text": {"head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8},  # scaled embedding
    "Mistral": {"head_dim": 8, "sliding_window": 6},  # shorter than the prompts
    "Phi": {"partial_rotary_factor": 0.5},  # biases, parallel residual
    "Qwen3Moe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "Mixtral": {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Cohere": {"logit_scale": 0.3},
    "Granite": {"logits_scaling": 3.0, "residual_multiplier": 0.7, "embedding_multiplier": 2.0},
    "Bloom": {},  # alibi, fused qkv, no positions
    "Falcon": {"alibi": True, "new_decoder_architecture": True, "num_kv_heads": 2},
    "GPTBigCode": {},  # one key for all heads
    "StableLm": {},
    "Olmo2": {},
    "GPTJ": {"rotary_dim": 4},
    "CodeGen": {"rotary_dim": 4},
    "XGLM": {"ffn_dim": 48},
    "BioGpt": {},
}


def build(name, **more):
    config = getattr(transformers, f"{name}Config")(**SIZES, **MODELS.get(name, {}), **more)
    config._attn_implementation = "eager"
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval()


@pytest.mark.parametrize("name", MODELS)
def test_adapters_on_all_linear_modules_equal_peft(
    name, char_tokenizer, make_adapter, peft_model, row_by_row, greedy
):
    base = Base(build(name), char_tokenizer, name)
    engine = Engine(base)
    for layers in (None, "top:1"):
        adapters = [make_adapter(seed, rank=seed, layers=layers, base=base) for seed in (1, 2)]
        scores = engine.score(adapters, PROMPTS, ANSWERS)
        texts = engine.generate(adapters, PROMPTS, max_new_tokens=6)
        for index, adapter in enumerate(adapters):
            model = peft_model(base, adapter)
            expected, exact = row_by_row(model, base, PROMPTS, ANSWERS)
            torch.testing.assert_close(scores.log_likelihood[index], expected, atol=1e-4, rtol=1e-4)
            assert scores.exact[index].tolist() == exact
            assert texts[index] == [greedy(model, base, prompt, 6) for prompt in PROMPTS]


@pytest.mark.parametrize("name", MODELS)
def test_embedding_adapters_equal_peft(name, char_tokenizer, make_adapter, peft_model, row_by_row):
    base = Base(build(name), char_tokenizer, name)
    tables = [path for path, spec in base.structure.specs.items() if spec.kind == "embedding"]
    assert len(tables) == 1
    adapter = make_adapter(3, targets=tables, base=base)
    expected, _ = row_by_row(peft_model(base, adapter), base, PROMPTS, ANSWERS)
    found = Engine(base).log_likelihood(adapter, PROMPTS, ANSWERS)[0]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


RECURRENT = {
    # config, and modules that PEFT takes (it refuses some, and mistakes shared experts for routed ones)
    "Mamba": ({"state_size": 4}, ["in_proj", "x_proj"]),
    "Jamba": (
        {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 4, "use_mamba_kernels": False},
        "all-linear",
    ),
    "Qwen3Next": (
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
        "attention",
    ),
    "RecurrentGemma": ({"lru_width": 32}, "all-linear"),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_models_score_exactly_and_refuse_to_generate(
    name, char_tokenizer, make_adapter, peft_model, row_by_row
):
    config, targets = RECURRENT[name]
    base = Base(build(name, **config), char_tokenizer, name)
    engine = Engine(base)
    for layers in (None, "top:1"):
        adapters = [make_adapter(seed, seed, targets, layers, base=base) for seed in (1, 2)]
        scores = engine.score(adapters, PROMPTS, ANSWERS)
        for index, adapter in enumerate(adapters):
            expected, _ = row_by_row(peft_model(base, adapter), base, PROMPTS, ANSWERS)
            torch.testing.assert_close(scores.log_likelihood[index], expected, atol=1e-4, rtol=1e-4)
    with pytest.raises(ModelError, match=r"a recurrent state, not a KV cache.*; score answers"):
        engine.generate(None, PROMPTS)


@pytest.mark.parametrize("name", ["Bert", "Electra", "Roberta"])
def test_encoders_are_refused(name, char_tokenizer):
    with pytest.raises(ModelError, match=r"a later token changes what .* says.*no causal language model"):
        Engine(Base(build(name), char_tokenizer, name))


def test_a_model_without_a_head_is_refused(llama, char_tokenizer):
    with pytest.raises(ModelError, match="LlamaModel has no output embedding"):
        Engine(Base(llama.model.model, char_tokenizer, "headless"))


def test_values_that_are_not_finite_are_refused(llama):
    with torch.no_grad():
        llama.model.model.layers[0].mlp.up_proj.weight.fill_(float("nan"))
    with pytest.raises(ModelError, match="not finite"):
        Engine(llama)


def test_logits_beside_the_head_are_refused(llama, monkeypatch):
    model = llama.model
    monkeypatch.setattr(model, "lm_head", Silent(model.lm_head))
    with pytest.raises(ModelError, match="without calling its output embedding"):
        Engine(llama)


class Silent(nn.Linear):
    """Its matrix is used, it is never called."""

    def __init__(self, head):
        super().__init__(head.in_features, head.out_features, bias=False)

    def __call__(self, x):
        return nn.functional.linear(x, self.weight)


class EightBit(nn.Module):
    """A linear module as a quantiser leaves it: no float weight."""

    def __init__(self, linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.register_buffer("scale", linear.weight.abs().amax(1, keepdim=True) / 127)
        self.register_buffer("weight", (linear.weight / self.scale).round().to(torch.int8))
        self.bias = linear.bias

    def forward(self, x):
        return nn.functional.linear(x, self.weight.float() * self.scale, self.bias)


def quantised(base):
    for path in base.modules():
        parent, _, name = path.rpartition(".")
        module = base.model.get_submodule(path)
        setattr(base.model.get_submodule(parent), name, EightBit(module))
    return Base(base.model, base.tokenizer, "quantised")


def test_a_quantised_base_carries_lora_and_refuses_dora(llama, make_adapter):
    adapters = [make_adapter(seed, base=llama) for seed in (1, 2)]
    dora = make_adapter(3, dora=True, base=llama)
    base = quantised(llama)
    assert len(base.modules()) == 21
    rounded = {
        n: m.weight.float() * m.scale for n, m in base.model.named_modules() if isinstance(m, EightBit)
    }
    engine = Engine(base)
    found = engine.log_likelihood(adapters, PROMPTS, ANSWERS)
    texts = engine.generate(adapters, PROMPTS, max_new_tokens=6)
    with pytest.raises(ModelError, match="DoRA needs the norms of a plain float weight"):
        engine.score(dora, PROMPTS, ANSWERS)
    for path, weight in rounded.items():  # the same values in plain modules
        parent, _, name = path.rpartition(".")
        plain = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        plain.weight.data = weight
        setattr(base.model.get_submodule(parent), name, plain)
    explicit = Engine(Base(base.model, base.tokenizer, "explicit"))
    torch.testing.assert_close(
        found, explicit.log_likelihood(adapters, PROMPTS, ANSWERS), atol=1e-5, rtol=1e-5
    )
    assert texts == explicit.generate(adapters, PROMPTS, max_new_tokens=6)


def test_dora_on_an_embedding_is_refused(llama, make_adapter):
    adapter = make_adapter(1, targets=["embed_tokens"], dora=True, base=llama)
    with pytest.raises(ModelError, match="DoRA on an embedding is not supported"):
        Engine(llama).score(adapter, PROMPTS, ANSWERS)


def test_a_model_that_cannot_be_padded_decodes_equal_lengths_together(make_tiny, char_tokenizer, greedy):
    model = make_tiny("gpt2")
    plain = type(model).forward

    class Counting(type(model)):
        def forward(self, input_ids=None, attention_mask=None, past_key_values=None, use_cache=None):
            return plain(
                self,
                input_ids,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                use_cache=use_cache,
            )

    expected = [greedy(model, Base(model, char_tokenizer, "x"), prompt, 8) for prompt in (*PROMPTS, "cd")]
    model.__class__ = Counting
    base = Base(model, char_tokenizer, "tiny")
    assert not base.structure.pads
    assert Engine(base).generate(None, [*PROMPTS, "cd"], max_new_tokens=8) == [expected]


def test_rows_part_at_once_where_a_model_carries_more_than_its_layers_show(
    make_tiny, char_tokenizer, make_adapter
):
    model = make_tiny("llama")
    inner = model.model
    plain = inner.forward

    def around(input_ids=None, **arguments):
        out = plain(input_ids=input_ids, **arguments)
        out.last_hidden_state = out.last_hidden_state + inner.embed_tokens(
            input_ids
        )  # a residual around the stack
        return out

    inner.forward = around
    base = Base(model, char_tokenizer, "residual")
    assert not base.parts_anywhere
    members = [make_adapter(seed, layers="top:1", base=base) for seed in range(3)]
    engine = Engine(base)
    together = engine.log_likelihood(members, PROMPTS, ANSWERS)
    alone = torch.cat([engine.log_likelihood(member, PROMPTS, ANSWERS) for member in members])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
