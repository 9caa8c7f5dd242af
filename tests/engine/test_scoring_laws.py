import hashlib

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evolora.adapters import Adapter, Factors, Stack, Stacked
from evolora.engine import Base, Engine
from evolora.engine import engine as engine_module
from evolora.errors import AdapterError, InputError

PROMPTS = ["ab", "a much longer prompt ->", "x: y", "the third of them", "q"]
ANSWERS = [" c", " d e f", " z", " one", " an answer of some length"]


def weights_digest(base):
    return {n: hashlib.sha256(p.numpy().tobytes()).hexdigest() for n, p in base.model.state_dict().items()}


@pytest.mark.parametrize("start", ["top:1", "1-1", None])
def test_a_reused_prefix_changes_no_bit_at_equal_chunks(base, make_adapter, start):
    members = [make_adapter(seed, layers=start, size=0.1) for seed in range(3)]
    with_reuse, without = (Engine(base, prefix_reuse=reuse) for reuse in (True, False))
    one, other = (e.score(members, PROMPTS, ANSWERS).log_likelihood for e in (with_reuse, without))
    assert torch.equal(one, other)
    spent, whole = with_reuse.ledger.forward_flops, without.ledger.forward_flops
    assert spent < whole if start else spent == whole


def test_scores_do_not_depend_on_the_padding(engine, row_by_row, make_adapter):
    expected, exact = row_by_row(engine.base.model, engine.base, PROMPTS, ANSWERS)
    scores = engine.score(None, PROMPTS, ANSWERS)
    torch.testing.assert_close(scores.log_likelihood[0], expected, atol=1e-5, rtol=1e-5)
    assert scores.exact[0].tolist() == exact
    assert scores.tokens.tolist() == [len(answer) + 1 for answer in ANSWERS]


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(max_tokens=st.integers(1, 900), count=st.integers(1, 7), prompts=st.integers(1, 5), top=st.booleans())
def test_scores_do_not_depend_on_how_they_are_cut(llama, make_adapter, max_tokens, count, prompts, top):
    members = [
        make_adapter(seed, rank=1 + seed % 3, layers="top:1" if top else None, base=llama)
        for seed in range(count)
    ]
    small, whole = (
        Engine(llama, max_tokens=tokens).score(members, PROMPTS[:prompts], ANSWERS[:prompts])
        for tokens in (max_tokens, 100_000)
    )
    torch.testing.assert_close(small.log_likelihood, whole.log_likelihood, atol=2e-5, rtol=2e-5)
    assert torch.equal(small.exact, whole.exact)


def test_more_members_than_a_block_are_cut_into_blocks(llama, make_adapter, monkeypatch):
    sizes = []
    forward = engine_module.Forward

    class Watched(forward):
        def __init__(self, base, members, start):
            sizes.append(members)
            super().__init__(base, members, start)

    monkeypatch.setattr(engine_module, "Forward", Watched)
    members = [make_adapter(seed, base=llama) for seed in range(9)]
    Engine(llama, max_tokens=150).score(members, PROMPTS[:2], ANSWERS[:2])
    assert len(sizes) > 1
    assert max(sizes) < 9


def test_the_base_is_the_population_of_one_that_changes_nothing(engine, make_adapter):
    members = [make_adapter(1), make_adapter(2, size=0.0)]
    values = engine.log_likelihood(members, PROMPTS, ANSWERS)
    plain = engine.log_likelihood(None, PROMPTS, ANSWERS)
    assert plain.shape == (1, 5)
    assert not torch.equal(values[0], plain[0])
    torch.testing.assert_close(values[1], plain[0], atol=1e-5, rtol=1e-5)


def test_factors_of_zero_give_the_bits_of_the_base_at_an_equal_batch(engine, make_adapter):
    nothing = make_adapter(1, size=0.0)
    assert torch.equal(
        engine.log_likelihood(nothing, PROMPTS, ANSWERS), engine.log_likelihood(None, PROMPTS, ANSWERS)
    )


def test_members_may_share_factors_with_coefficients_of_each_module(llama, make_adapter):
    adapter = make_adapter(3, base=llama)
    coefficients = {name: (1.0, -0.5) if i % 2 else (-2.0, 0.3) for i, name in enumerate(adapter.modules)}

    class Pairs(Stacked):
        group = 2

        def block(self, members):
            shared = super().block([members[0]])
            return {
                name: Stack(s.a, s.b, torch.tensor(coefficients[name])[list(members)], kind=s.kind)
                for name, s in shared.items()
            }

    def member(index):
        return Adapter(
            {n: Factors(f.a, f.b, f.scale * coefficients[n][index]) for n, f in adapter.modules.items()}
        )

    engine = Engine(llama)
    pair = engine.log_likelihood(Pairs([adapter, adapter], ["+", "-"]), PROMPTS, ANSWERS)
    apart = engine.log_likelihood([member(0), member(1)], PROMPTS, ANSWERS)
    torch.testing.assert_close(pair, apart, atol=1e-5, rtol=1e-5)


def test_half_precision_follows_single_precision(llama, make_adapter):
    import copy

    adapters = [make_adapter(seed, size=0.1, base=llama) for seed in range(3)]
    half = Base(copy.deepcopy(llama.model).bfloat16(), llama.tokenizer, "tiny")
    exact = Engine(llama).log_likelihood(adapters, PROMPTS, ANSWERS)
    rough = Engine(half).log_likelihood(adapters, PROMPTS, ANSWERS)
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=0.05, atol=0.5)
    assert half.fingerprint == llama.fingerprint


@pytest.mark.parametrize("stop", [None, "\n"], ids=["end of text", "new line"])
def test_exact_is_what_greedy_generation_says(engine, make_adapter, stop):
    # tokens that leave no text would make another answer of a completion
    silent = torch.tensor([0, 1])
    head = engine.base.model.get_output_embeddings()
    head.register_forward_hook(lambda _m, _args, logits: logits.index_fill(-1, silent, -1e4))
    members = [make_adapter(seed) for seed in range(4)]
    completions = engine.generate(members, PROMPTS, max_new_tokens=40, stop=stop)
    for index, member in enumerate(members):
        row = completions[index]
        found = engine.score(member, PROMPTS, row, stop=stop).exact[0].tolist()
        ended = [len(engine.base.encode(text, answer=True)) < 40 for text in row]
        assert found == ended  # a completion that was cut off has no end that could be right
        wrong = [text[:-1] if text else "!" for text in row]
        assert not engine.score(member, PROMPTS, wrong, stop=stop).exact.any()


def test_exact_with_a_stop_sees_answers_that_end(llama):
    head = llama.model.get_output_embeddings()
    newline = llama.encode("\n", answer=True)[0]

    class Favour(torch.nn.Module):
        def forward(self, x):
            out = torch.nn.functional.linear(x, head.weight)
            out[..., newline] += 1e4
            return out

    favoured = Favour()
    favoured.in_features, favoured.out_features, favoured.weight = (
        head.in_features,
        head.out_features,
        head.weight,
    )
    llama.model.set_output_embeddings(favoured)
    engine = Engine(llama)
    assert engine.generate(None, PROMPTS, stop="\n", max_new_tokens=3) == [[""] * 5]
    assert engine.score(None, PROMPTS, [""] * 5, stop="\n").exact.all()
    assert not engine.score(None, PROMPTS, [""] * 5).exact.any()


def test_no_prompts_give_empty_results(engine):
    scores = engine.score(None, [], [])
    assert scores.log_likelihood.shape == (1, 0)
    assert scores.tokens.shape == (0,)
    assert engine.generate(None, []) == [[]]
    assert engine.embed([]).shape[0] == 0


def test_bad_prompts_are_refused_by_number(engine):
    with pytest.raises(InputError, match="prompt 1: the prompt is empty"):
        engine.score(None, ["a", ""], ["b", "c"])
    with pytest.raises(InputError, match="2 prompts and 1 answers"):
        engine.score(None, ["a", "b"], ["c"])
    for call in (
        lambda: engine.score(None, ["a" * 250], ["b" * 7]),
        lambda: engine.generate(None, ["a" * 250], max_new_tokens=8),
        lambda: engine.embed(["a" * 257]),
    ):
        with pytest.raises(InputError, match="max_position_embeddings = 256"):
            call()
    assert engine.score(None, ["a" * 250], ["b" * 6]).log_likelihood.isfinite().all()
    engine.generate(None, ["a" * 250], max_new_tokens=7)
    with pytest.raises(InputError, match="stop: the text is empty"):
        engine.generate(None, ["a"], stop="")
    with pytest.raises(InputError, match="no single token"):
        engine.score(None, ["a"], ["b"], stop="ab")
    with pytest.raises(InputError, match="max_tokens is 0"):
        Engine(engine.base, max_tokens=0)


def test_unicode_prompts_are_scored(engine):
    values = engine.log_likelihood(None, ["äöü €", "日本 🙂"], [" ß", "\u200b"])
    assert values.isfinite().all()


def test_the_base_stays_as_it_was_even_after_an_error_inside_a_forward(engine, make_adapter):
    base = engine.base
    before = weights_digest(base)
    members = [make_adapter(1), make_adapter(2, dora=True, layers="top:1")]
    plain = engine.log_likelihood(None, PROMPTS, ANSWERS)
    engine.score(members, PROMPTS, ANSWERS)
    engine.generate(members, PROMPTS, max_new_tokens=4, temperature=1.0)
    engine.embed(PROMPTS)
    template = base.modules()
    a = {n: torch.randn(2, s.d_in, requires_grad=True) for n, s in template.items()}
    b = {n: torch.randn(s.d_out, 2, requires_grad=True) for n, s in template.items()}
    engine.training_loss(a, b, 1.0, PROMPTS, ANSWERS).backward()

    last = base.model.get_submodule(list(template)[-1])
    handle = last.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(MemoryError("full")))
    for call in (
        lambda: engine.score(members, PROMPTS, ANSWERS),
        lambda: engine.generate(members, PROMPTS),
        lambda: engine.training_loss(a, b, 1.0, PROMPTS, ANSWERS),
        lambda: engine.embed(PROMPTS),
    ):
        with pytest.raises(MemoryError):
            call()
    handle.remove()
    for module in base.model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert "forward" not in vars(module)
    assert weights_digest(base) == before
    assert torch.equal(engine.log_likelihood(None, PROMPTS, ANSWERS), plain)


def test_embeddings_are_means_of_the_head_s_input_and_ignore_the_padding(engine):
    model = engine.base.model
    together = engine.embed(PROMPTS)
    seen = []
    handle = model.get_output_embeddings().register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        for prompt in PROMPTS:
            model(input_ids=torch.tensor([engine.base.encode(prompt)]))
    handle.remove()
    expected = torch.stack([hidden[0].mean(0) for hidden in seen])
    torch.testing.assert_close(together, expected, atol=1e-5, rtol=1e-5)


def test_an_adapter_of_another_base_is_refused(engine, make_adapter):
    good = make_adapter(1)
    path, factors = next(iter(good.modules.items()))
    for modules, words in (
        ({"model.layers.99.q": factors}, "no module"),
        ({path: Factors(torch.zeros(2, 5), torch.zeros(7, 2))}, "7 x 5 in the adapter"),
    ):
        with pytest.raises(AdapterError, match=words):
            engine.score(Adapter(modules, base="other/model"), PROMPTS, ANSWERS)
    foreign = Adapter(good.modules, base="other/model", provenance={"base_fingerprint": "0" * 16})
    with pytest.raises(AdapterError, match="load the base it names: other/model"):
        engine.generate([good, foreign], PROMPTS)
    own = Adapter(good.modules, provenance={"base_fingerprint": engine.base.fingerprint})
    engine.base.check(own)
