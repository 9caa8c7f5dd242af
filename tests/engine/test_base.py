import copy
from itertools import pairwise

import pytest
import torch

from evolora.adapters import Adapter, Factors
from evolora.engine import Base, Engine
from evolora.errors import ConfigError, InputError, ModelError


def test_all_linear_modules_of_the_layers_are_found_in_the_order_of_their_calls(base):
    found = list(base.modules())
    linear = {
        name
        for name, module in base.model.named_modules()
        if type(module).__name__ in ("Linear", "Conv1D")
        and any(name.startswith(x) for x in base.structure.layers)
    }
    assert set(found) == linear
    assert all(base.structure.layer_of[a] <= base.structure.layer_of[b] for a, b in pairwise(found))
    assert set(base.modules("attention")) | set(base.modules("mlp")) == linear
    assert not set(base.modules("attention")) & set(base.modules("mlp"))


def test_shapes_are_those_of_the_weights(base):
    for name, spec in base.structure.specs.items():
        weight = base.model.get_submodule(name).weight
        assert {spec.d_in, spec.d_out} == set(weight.shape)
    table = base.model.get_input_embeddings()
    spec = next(s for s in base.structure.specs.values() if s.kind == "embedding")
    assert (spec.d_in, spec.d_out) == (table.num_embeddings, table.embedding_dim)


def test_position_embeddings_carry_no_adapter(base):
    assert sum(spec.kind == "embedding" for spec in base.structure.specs.values()) == 1


@pytest.mark.parametrize("tiny", ["llama", "qwen3"])
def test_projections_share_their_input(tiny, make_tiny, char_tokenizer):
    base = Base(make_tiny(tiny), char_tokenizer, "tiny")
    groups = base.structure.groups
    one = {
        name: groups[f"model.layers.0.{name}"]
        for name in ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj")
    }
    assert one["self_attn.q_proj"] == one["self_attn.k_proj"] != one["mlp.up_proj"]
    assert groups["model.layers.0.mlp.gate_proj"] == one["mlp.up_proj"]
    assert groups["model.layers.1.self_attn.q_proj"] not in one.values()


def test_an_input_that_changes_in_place_between_two_modules_is_not_shared(llama):
    layer = llama.model.model.layers[0].self_attn
    layer.q_proj.register_forward_hook(lambda _module, args, _output: grow(args[0]))
    groups = llama.structure.groups
    q, k, v = (groups[f"model.layers.0.self_attn.{name}_proj"] for name in "qkv")
    assert q != k == v


def grow(x):
    x.mul_(2)


def test_an_embedding_that_is_no_look_up_carries_no_adapter(llama):
    class Squared(torch.nn.Embedding):
        def forward(self, ids):
            return super().forward(ids).square()

    llama.model.model.embed_tokens.__class__ = Squared
    assert "model.embed_tokens" not in llama.structure.specs
    assert len(llama.modules()) == 21


def test_the_structure_can_be_read_in_inference_mode(llama):
    with torch.inference_mode():
        assert len(llama.structure.layers) == 3


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (None, [0, 1, 2]),
        ("top:1", [2]),
        ("bottom:2", [0, 1]),
        ("0-1", [0, 1]),
        ("0,2", [0, 2]),
        ("-1", [2]),
        ([-1, 0], [0, 2]),
        ((1,), [1]),
    ],
)
def test_layers_are_chosen(llama, layers, expected):
    assert sorted({llama.structure.layer_of[n] for n in llama.modules("all-linear", layers)}) == expected


def test_names_and_patterns_choose_modules(llama):
    assert len(llama.modules(["q_proj", "mlp.down_proj"])) == 6
    assert list(llama.modules(["model.layers.1.self_attn.q_proj"])) == ["model.layers.1.self_attn.q_proj"]
    assert len(llama.modules(r".*\.[01]\.self_attn\.[qv]_proj")) == 4
    assert set(llama.modules(["lm_head", "embed_tokens"])) == {"lm_head", "model.embed_tokens"}


@pytest.mark.parametrize(
    ("targets", "layers", "words"),
    [
        (["q_prj", "v_proj"], None, "no module is called q_prj; this model has .*q_proj"),
        ("q_prj", None, "'q_prj' in layers all names no module; this model has"),
        ("(", None, "no regular expression"),
        ([], None, "names no module"),
        ("all-linear", "top:4", "does not select layers of this model; it has 3"),
        ("all-linear", "top:0", "does not select"),
        ("all-linear", "2-5", "does not select"),
        ("all-linear", "x", "does not select"),
        ("all-linear", [3], "there is no layer 3; the model has layers 0 to 2"),
        ("all-linear", "-4", "there is no layer -4"),
        ("all-linear", [], "names no module"),
        (["lm_head"], "top:1", "names no module"),
    ],
)
def test_what_names_no_module_is_refused(llama, targets, layers, words):
    with pytest.raises(ConfigError, match=words):
        llama.modules(targets, layers)


def test_the_fingerprint_names_the_weights(llama, make_tiny, char_tokenizer):
    other = make_tiny("llama")
    with torch.no_grad():
        other.model.layers[1].mlp.up_proj.weight.mul_(1.1)
    assert Base(make_tiny("llama"), char_tokenizer, "again").fingerprint == llama.fingerprint
    assert Base(other, char_tokenizer, "other").fingerprint != llama.fingerprint
    half = Base(copy.deepcopy(llama.model).bfloat16(), char_tokenizer, "half")
    assert half.fingerprint == llama.fingerprint
    assert (
        Base(copy.deepcopy(half.model).to(torch.float16), char_tokenizer, "half").fingerprint
        == half.fingerprint
    )
    assert len(llama.fingerprint) == 16


def test_an_answer_is_tokenised_after_its_prompt(llama):
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import Metaspace
    from transformers import PreTrainedTokenizerFast

    vocabulary = {t: i for i, t in enumerate(["</s>", "▁", "a", "b", "c", "▁b", "▁a", "ab", ":"])}
    model = BPE(vocabulary, [("▁", "b"), ("▁", "a"), ("a", "b")])
    raw = Tokenizer(model)
    raw.pre_tokenizer = Metaspace()  # sets a blank before a text that has none
    llama.tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>")
    ids = {token: i for token, i in vocabulary.items()}
    assert llama.text.pairs(["c:"], [" b"]) == [([ids["▁"], ids["c"], ids[":"]], [ids["▁b"], ids["</s>"]])]
    assert llama.text.pairs(["c:"], ["b"])[0][1] == [ids["b"], ids["</s>"]]  # alone it would be ▁b
    # "a" and "b" grow together: no model that has read "a" writes the token "ab"
    assert llama.text.pairs(["c:a"], ["b"])[0][0][-1] == ids["a"]


def test_prompts_get_the_start_but_no_end_that_a_tokenizer_adds(llama):
    from tokenizers.processors import TemplateProcessing

    backend = llama.tokenizer.backend_tokenizer
    backend.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    plain = llama.tokenizer("ab", add_special_tokens=False)["input_ids"]
    assert llama.encode("ab") == [1, *plain]
    assert llama.encode("ab", answer=True) == plain
    assert llama.text.pairs(["ab"], ["ab"]) == [([1, *plain], [*plain, 2])]


def test_chats_need_a_template(llama):
    with pytest.raises(ModelError, match="no chat template; give 'prompt' texts"):
        llama.render([{"role": "user", "content": "hi"}])
    llama.tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}bot:{% endif %}"
    )
    assert llama.render([{"role": "user", "content": "hi"}]) == "user: hi\nbot:"


def test_an_end_of_text_is_needed(llama):
    llama.tokenizer.eos_token = None
    llama.model.generation_config.eos_token_id = None
    with pytest.raises(ModelError, match=r"set tokenizer\.eos_token"):
        llama.end_tokens  # noqa: B018


def test_every_end_of_the_generation_config_counts(llama):
    llama.model.generation_config.eos_token_id = [7, 2]
    assert llama.end_tokens == (2, 7)


def test_tokens_that_the_model_has_no_row_for_are_refused(llama):
    llama.tokenizer.add_tokens(["<new>"])
    with pytest.raises(InputError, match=r"token 97.*97 tokens"):
        llama.text.prompts(["a <new>"])


def test_a_lora_as_dora_computes_the_same_and_keeps_magnitudes_that_are_there(make_tiny, char_tokenizer):
    base = Base(make_tiny("llama"), char_tokenizer, "tiny")
    specs = base.modules("attention")
    draw = torch.Generator().manual_seed(0)
    modules = {
        name: Factors(
            torch.randn(3, spec.d_in, generator=draw), torch.randn(spec.d_out, 3, generator=draw), scale=0.05
        )
        for name, spec in specs.items()
    }
    lora = Adapter(modules)
    dora = base.as_dora(lora)
    assert all(factors.magnitude is not None for factors in dora.modules.values())
    engine, prompts, answers = Engine(base), ["abc", "x y"], ["de", "z"]
    one, two, plain = (engine.log_likelihood(m, prompts, answers) for m in (lora, dora, None))
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
    assert (one - plain).abs().max() > 0.01
    assert base.as_dora(dora).modules == dora.modules
