import pytest
import torch

from evolora.bench.generation import PeftGeneration
from evolora.bench.members import adapters, last_logits, noise, texts, token_rows
from evolora.bench.peers import CopyLoop, MergeLoop, PeftAdapters
from evolora.bench.twin import twin


@pytest.fixture
def population(base):
    return noise(base.modules(), 4, 2)


def close(found, expected):
    torch.testing.assert_close(found, expected[: len(found)], atol=1e-4, rtol=1e-4)


def test_every_peer_computes_what_the_population_does(engine, population):
    ids = token_rows(engine.base, 2, 8)
    held = adapters(population)
    expected = last_logits(engine, population, ids)
    for pairs in (True, False):
        close(CopyLoop(engine.base, held, pairs=pairs).loop(ids, 3), expected)
    merged = MergeLoop(engine.base, held)
    for count in (4, 2):
        close(merged.loop(ids, count), expected)
    peft = PeftAdapters(engine.base, held)
    close(peft.loop(ids, 3), expected)
    if "OPT" not in type(engine.base.model).__name__:
        close(peft.mixed(ids), expected)


def test_a_mixed_batch_that_fails_leaves_the_loop_working(tiny_opt, char_tokenizer):
    from evolora.engine import Base, Engine

    engine = Engine(Base(tiny_opt, char_tokenizer, "tiny"))
    population = noise(engine.base.modules(), 2, 1)
    ids = token_rows(engine.base, 2, 8)
    peft = PeftAdapters(engine.base, adapters(population))
    with pytest.raises(ValueError, match="adapter_names"):
        peft.mixed(ids)
    close(peft.loop(ids, 2), last_logits(engine, population, ids))


def test_peft_generates_what_the_engine_does(llama_engine):
    held = adapters(noise(llama_engine.base.modules(), 3, 1))
    prompts = texts(2)
    expected = llama_engine.generate(held, prompts, max_new_tokens=5)
    peft = PeftGeneration(llama_engine.base, PeftAdapters(llama_engine.base, held), prompts, 5)
    assert peft.mixed() == expected
    assert peft.loop(2) == expected[:2]


def test_the_base_is_the_same_after_its_twins_were_used(engine, population):
    before = {name: value.clone() for name, value in engine.base.model.state_dict().items()}
    held, ids = adapters(population), token_rows(engine.base, 1, 4)
    PeftAdapters(engine.base, held).loop(ids, 2)
    MergeLoop(engine.base, held).loop(ids, 2)
    after = engine.base.model.state_dict()
    assert after.keys() == before.keys()
    assert all(after[name].equal(value) for name, value in before.items())


def test_a_twin_shares_weights_unless_told_otherwise(llama_engine):
    own = {p.data_ptr() for p in llama_engine.base.model.parameters()}
    assert {p.data_ptr() for p in twin(llama_engine.base).parameters()} == own
    assert not {p.data_ptr() for p in twin(llama_engine.base, own_weights=True).parameters()} & own
