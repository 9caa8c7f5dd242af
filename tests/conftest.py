from __future__ import annotations

import importlib
import json
import signal
from pathlib import Path

import pytest

# whoever started the tests in the background made them deaf to it
signal.signal(signal.SIGINT, signal.default_int_handler)

VOCABULARY, HIDDEN = 97, 32


def _config(name):
    from transformers import GPT2Config, GPTNeoXConfig, LlamaConfig, OPTConfig, Qwen3Config

    shared = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    }
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    wide = {"intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 256}
    if name == "llama":
        return LlamaConfig(**shared, **wide, **tokens, tie_word_embeddings=True)
    if name == "qwen3":
        return Qwen3Config(**shared, **wide, **tokens, head_dim=8)
    if name == "neox":
        return GPTNeoXConfig(**shared, **tokens, intermediate_size=48, max_position_embeddings=256)
    if name == "opt":
        return OPTConfig(
            **shared,
            **tokens,
            ffn_dim=48,
            word_embed_proj_dim=HIDDEN,
            max_position_embeddings=256,
            dropout=0.0,
        )
    return GPT2Config(
        vocab_size=VOCABULARY, n_embd=HIDDEN, n_layer=2, n_head=4, n_positions=256, **tokens, resid_pdrop=0.0
    )


def build_tiny(name):
    import torch
    from transformers import AutoModelForCausalLM

    config = _config(name)
    config._attn_implementation = "eager"
    with torch.random.fork_rng():
        torch.manual_seed(sum(name.encode()))
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            # as initialised, every output is nearly the same: nothing would tell two adapters apart
            parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval()


@pytest.fixture
def char_tokenizer():
    """One token a printable character; the new line is one too."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import Fuse
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<s>", "</s>", "\n", *map(chr, range(32, 125))]
    characters = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token="<pad>"))
    characters.pre_tokenizer = Split("", "isolated")
    characters.decoder = Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=characters, pad_token="<pad>", eos_token="</s>")


@pytest.fixture
def make_tiny():
    """Builds a tiny random model by the name of its architecture; the same weights each time."""
    return build_tiny


@pytest.fixture
def tiny_llama():
    return build_tiny("llama")


@pytest.fixture
def tiny_gpt2():
    return build_tiny("gpt2")


@pytest.fixture
def tiny_opt():
    return build_tiny("opt")


@pytest.fixture
def tiny_neox():
    return build_tiny("neox")


@pytest.fixture
def tiny_qwen3():
    return build_tiny("qwen3")


@pytest.fixture(params=["llama", "gpt2", "opt", "neox", "qwen3"])
def tiny_model(request):
    return build_tiny(request.param)


CHARACTERS = [chr(code) for code in range(32, 127)] + ["\n"]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """A random Llama with one token a character, as transformers saves it."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=256,
        pad_token_id=0, bos_token_id=1, eos_token_id=1,
        tie_word_embeddings=True,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("model")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>").save_pretrained(
        folder
    )
    return folder


@pytest.fixture(scope="session")
def script():
    """Imports a script of benchmarks by name."""
    folder = Path(__file__).parents[1] / "benchmarks"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield importlib.import_module


@pytest.fixture(scope="session")
def recorded():
    """Reads a committed record by name."""
    folder = Path(__file__).parents[1] / "results"
    return lambda name: json.loads((folder / f"{name}.json").read_text())
