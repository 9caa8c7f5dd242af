"""A small random language model over characters: a test-bed that costs nothing and has learned nothing.

A Llama of four layers of width 64, weights normal with a standard deviation of 0.15, so that its outputs tell
tokens apart; 97 tokens. Frozen random backbones as probes of LoRA: arXiv 2604.08749.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from evolora.engine import Base

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

RANDOM = "random"
WIDTH, DEPTH, DEVIATION, POSITIONS = 64, 4, 0.15, 4096


@cache
def random_base(seed: int) -> Base:
    """The model of a seed, made once a process."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    tokenizer = _tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=DEPTH,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.data.normal_(std=DEVIATION)
    return Base(model, tokenizer, f"{RANDOM}-{seed}")


def _tokenizer() -> PreTrainedTokenizerFast:
    """One token a printable character, and the new line."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import Fuse
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "</s>", "\n", *map(chr, range(32, 126))]
    characters = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token="<pad>"))
    characters.pre_tokenizer = Split("", "isolated")
    characters.decoder = Fuse()
    made: PreTrainedTokenizerFast = PreTrainedTokenizerFast(
        tokenizer_object=characters, pad_token="<pad>", eos_token="</s>"
    )
    return made
