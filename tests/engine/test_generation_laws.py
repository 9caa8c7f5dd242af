import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from evolora.adapters import Adapter
from evolora.engine import Engine, generation
from evolora.engine.sampling import Sampler
from evolora.errors import ConfigError
from evolora.search import Eggroll

PROMPTS = ["ab", "a much longer prompt ->", "x: y", "the third of them", "q"]


def completions_of(engine, members, prompts=PROMPTS, **options):
    return engine.generate(members, prompts, **{"max_new_tokens": 12, **options})


def test_greedy_base_completions_equal_generate_of_transformers(engine, greedy):
    expected = [greedy(engine.base.model, engine.base, prompt, 12) for prompt in PROMPTS]
    assert completions_of(engine, None) == [expected]


@pytest.mark.parametrize("start", ["top:1", "1-1", None])
def test_a_reused_prefix_changes_no_completion(base, make_adapter, start):
    members = [make_adapter(seed, layers=start) for seed in range(3)]
    one, other = (
        completions_of(Engine(base, prefix_reuse=reuse), members, temperature=0.7) for reuse in (True, False)
    )
    assert one == other


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampled"])
def test_completions_do_not_depend_on_the_batch(engine, make_adapter, temperature):
    members = [make_adapter(seed, rank=1 + seed % 2, dora=seed == 1, size=0.1) for seed in range(3)]
    options = {"temperature": temperature, "top_p": 0.9, "seed": 3, "max_new_tokens": 6}
    whole = completions_of(engine, members, **options)
    assert whole == [completions_of(engine, member, **options)[0] for member in members]
    assert whole == completions_of(Engine(engine.base, max_tokens=40), members, **options)
    one_by_one = [[completions_of(engine, members, [p], **options)[m][0] for p in PROMPTS] for m in range(3)]
    assert whole == one_by_one
    backwards = completions_of(engine, members, PROMPTS[::-1], **options)
    assert whole == [row[::-1] for row in backwards]


def end_often(engine, share_of_vocabulary, bonus=0.0):
    """Lets rows end at different steps: the end takes over the probability of some other tokens."""
    ends, end = torch.arange(3, 3 + share_of_vocabulary), engine.base.end_tokens[0]

    def hook(_module, _args, logits):
        best = logits.index_select(-1, ends).amax(-1, keepdim=True) + bonus
        return torch.cat(
            [logits[..., :end], torch.maximum(best, logits[..., end : end + 1]), logits[..., end + 1 :]], -1
        )

    engine.base.model.get_output_embeddings().register_forward_hook(hook)


@pytest.mark.parametrize("temperature", [0.0, 1.5], ids=["greedy", "sampled"])
def test_rows_that_have_ended_leave_without_a_trace(engine, make_adapter, monkeypatch, temperature):
    end_often(engine, 40, bonus=2 * (temperature > 0))
    members = [make_adapter(seed, rank=1 + seed % 3, dora=seed == 2) for seed in range(5)]
    results, flops, tokens = [], [], []
    for leave in (0.0, 0.8, 1.0):  # never, sometimes, always
        monkeypatch.setattr(generation, "_LEAVE", leave)
        fresh = Engine(engine.base)
        results.append(completions_of(fresh, members, temperature=temperature, max_new_tokens=24))
        flops.append(fresh.ledger.forward_flops)
        tokens.append(fresh.ledger.generated_tokens)
    assert results[0] == results[1] == results[2]
    assert len({len(text) for row in results[0] for text in row}) > 1
    assert tokens[0] == tokens[1] == tokens[2]
    assert flops[0] >= flops[1] >= flops[2] < flops[0]


def test_members_that_share_factors_in_pairs_leave_too(llama):
    end_often(Engine(llama), 40)
    engine, method = Engine(llama), Eggroll(sigma=0.5, rank=2, population=6)
    population = method.ask(method.init(llama.modules(), 0))
    whole = completions_of(engine, population, max_new_tokens=24)
    assert whole == [completions_of(engine, population.select([m]), max_new_tokens=24)[0] for m in range(6)]
    assert len({tuple(row) for row in whole}) == 6
    assert engine.ledger.generated_tokens < 6 * 5 * 24


def test_the_ledger_counts_the_tokens_that_were_decoded(llama, make_adapter):
    end_often(Engine(llama), 12)
    engine = Engine(llama)
    texts = completions_of(
        engine, [make_adapter(1, base=llama), make_adapter(2, base=llama)], temperature=1.0
    )
    lengths = [len(text) for row in texts for text in row]
    shortest, longest = sum(lengths), sum(length + 1 for length in lengths)
    assert shortest < engine.ledger.generated_tokens <= longest + sum(lengths)  # some tokens leave no text
    assert engine.ledger.prompt_tokens == 2 * 5 * max(map(len, PROMPTS))


def test_a_stop_text_ends_a_completion_and_is_removed(engine):
    whole = completions_of(engine, None, max_new_tokens=30)[0]
    letter = max((c for text in whole for c in text), key="".join(whole).count)
    cut = completions_of(engine, None, max_new_tokens=30, stop=letter)[0]
    assert cut == [text.split(letter)[0] for text in whole]
    pair = next(text[3:5] for text in whole if len(text) > 5)  # of two tokens
    assert completions_of(engine, None, max_new_tokens=30, stop=pair)[0] == [t.split(pair)[0] for t in whole]


def test_seeds_members_and_copies_of_a_prompt_draw_apart(llama, make_adapter):
    engine = Engine(llama)
    options = {"temperature": 2.0, "max_new_tokens": 20}
    assert completions_of(engine, None, seed=1, **options) == completions_of(engine, None, seed=1, **options)
    assert completions_of(engine, None, seed=1, **options) != completions_of(engine, None, seed=2, **options)
    repeated = completions_of(engine, None, ["ab"] * 6, **options)[0]
    assert len(set(repeated)) == 6
    assert repeated[0] == completions_of(engine, None, ["zz", "ab"], **options)[0][1]
    one = make_adapter(1, base=llama)
    twin = Adapter(one.modules, name="twin")
    first, second = completions_of(engine, [one, twin], **options)
    assert first != second


def test_a_temperature_near_zero_is_greedy(engine):
    expected = completions_of(engine, None)
    for temperature in (1e-300, 1e-30, 1e-5):
        assert completions_of(engine, None, temperature=temperature) == expected
    assert completions_of(engine, None, temperature=1.0, top_p=1e-9) == expected


def test_samples_follow_the_softmax(llama):
    engine, temperature, count = Engine(llama), 1.3, 3000
    prompt = "ab ->"
    with torch.no_grad():
        logits = llama.model(input_ids=torch.tensor([llama.encode(prompt)])).logits[0, -1]
    expected = torch.softmax(logits.double() / temperature, -1).numpy()
    rows = engine.generate(None, [prompt] * count, max_new_tokens=1, temperature=temperature, seed=5)[0]
    vocabulary = llama.tokenizer.convert_ids_to_tokens(range(97))
    texts = [text or "silent" for text in rows]  # the padding and the end leave no text
    observed = np.array([texts.count("silent"), *(texts.count(vocabulary[i]) for i in (1, *range(3, 97)))])
    wanted = count * np.array([expected[[0, 2]].sum(), expected[1], *expected[3:]])
    assert wanted.min() > 5
    assert observed.sum() == count
    assert chisquare(observed, wanted).pvalue > 1e-3


def test_top_p_keeps_the_smallest_set_that_holds_the_mass():
    logits = torch.log(torch.tensor([[0.1, 0.4, 0.2, 0.3]]))
    for top_p, kept in ((0.39, [1]), (0.41, [1, 3]), (0.71, [1, 2, 3]), (1.0, [0, 1, 2, 3])):
        probability = Sampler(1.0, top_p, None).probabilities(logits)
        assert probability[0].nonzero()[:, 0].tolist() == kept
    draws = torch.tensor([[0.0], [0.5], [1 - 2**-53]], dtype=torch.float64)
    chosen = Sampler(1.0, 0.41, draws)(logits.expand(3, -1), torch.arange(3), 0)
    assert chosen.tolist() == [1, 1, 3]


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_p": 1.5},
    ],
)
def test_settings_out_of_range_are_refused(llama, options):
    with pytest.raises(ConfigError, match="need max_new_tokens >= 1"):
        Engine(llama).generate(None, ["a"], **options)
