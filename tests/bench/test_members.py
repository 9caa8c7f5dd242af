import torch

from evolora.bench.members import Search, adapters, last_logits, noise, texts, token_rows
from evolora.engine import Engine


def test_the_adapters_of_a_noise_population_compute_what_it_computes(engine):
    population = noise(engine.base.modules(), 6, 2)
    ids = token_rows(engine.base, 2, 9)
    together = last_logits(engine, population, ids)
    assert together.shape[:2] == (6, 2)
    for i, adapter in enumerate(adapters(population)):
        torch.testing.assert_close(last_logits(engine, [adapter], ids)[0], together[i], atol=1e-4, rtol=1e-4)
    assert (together[0] - together[1]).abs().max() > 1e-2


def test_an_odd_number_of_members_has_no_pairs_and_still_agrees(llama_engine):
    population = noise(llama_engine.base.modules(), 3, 1)
    ids = token_rows(llama_engine.base, 1, 5)
    torch.testing.assert_close(
        last_logits(llama_engine, adapters(population), ids), last_logits(llama_engine, population, ids)
    )


def test_small_passes_give_the_logits_of_one_pass(llama_engine):
    population = noise(llama_engine.base.modules(), 8, 2)
    ids = token_rows(llama_engine.base, 3, 7)
    small = Engine(llama_engine.base, max_tokens=14)
    torch.testing.assert_close(
        last_logits(small, population, ids), last_logits(llama_engine, population, ids)
    )


def test_a_search_under_way_has_left_the_base_and_stays_where_it_is(llama_engine):
    search = Search(llama_engine.base.modules(), 4, 1)
    ids = token_rows(llama_engine.base, 2, 5)
    before = last_logits(llama_engine, search.ask(), ids)
    around_base = last_logits(llama_engine, noise(llama_engine.base.modules(), 4, 1), ids)
    assert (before - around_base).abs().max() > 1e-3
    search.tell(torch.rand(4, 2))
    assert last_logits(llama_engine, search.ask(), ids).equal(before)


def test_texts_are_all_different():
    assert len(set(texts(40))) == 40
    assert all(text.count(". ") == 2 for text in texts(8, sentences=3))
