import pytest
import torch

from evolora.adapters import Adapter, Factors, as_population
from evolora.diagnostics import divergence as module
from evolora.diagnostics.divergence import continuations, divergences, token_divergences
from evolora.engine import Engine
from evolora.errors import InputError
from evolora.search import Eggroll

PROMPTS = ["ab", "a much longer prompt ->", "x: y"]


def logits_of(engine, adapter, pair):
    """Logits at the continuation's positions through merged weights, one unpadded row."""
    from torch.func import functional_call

    weights = dict(engine.base.model.named_parameters())
    for name, factors in () if adapter is None else adapter.modules.items():
        weights[f"{name}.weight"] = weights[f"{name}.weight"] + factors.delta()
    prompt, said = pair
    ids = torch.tensor([[*prompt, *said]])
    out = functional_call(engine.base.model, weights, (), {"input_ids": ids}, tie_weights=False)
    return out.logits[0, len(prompt) - 1 : -1].double()


def brute_force(engine, adapter, pairs):
    there, back = [], []
    for pair in pairs:
        p, q = (logits_of(engine, a, pair).softmax(-1) for a in (adapter, None))
        there.append((p * (p / q).log()).sum(-1))
        back.append((q * (q / p).log()).sum(-1))
    return torch.cat(there).mean().item(), torch.cat(back).mean().item()


@pytest.fixture
def adapters(engine, make_adapter):
    modules = engine.base.modules("all-linear")
    return [make_adapter(modules, name=f"{i}", size=0.1 * (i + 1)) for i in range(3)]


def test_it_is_the_divergence_of_dense_weights(engine, adapters):
    pairs = continuations(engine, PROMPTS, tokens=6)
    for adapter, found in zip(adapters, divergences(engine, adapters, pairs), strict=True):
        to_base, from_base = brute_force(engine, adapter, pairs)
        assert found.to_base == pytest.approx(to_base, rel=1e-3)
        assert found.from_base == pytest.approx(from_base, rel=1e-3)
        assert found.tokens == sum(len(said) for _, said in pairs)
        assert found.prompts == 3
        assert 0 <= found.ci[0] < found.ci[1]


def test_how_it_is_cut_changes_nothing(engine, adapters, monkeypatch):
    pairs = continuations(engine, PROMPTS, tokens=6)
    whole = divergences(engine, adapters, pairs)
    monkeypatch.setattr(module, "_PART", 2)
    small = Engine(engine.base, max_tokens=40, prefix_reuse=False)
    for one, other in zip(whole, divergences(small, adapters, pairs), strict=True):
        assert other.to_base == pytest.approx(one.to_base, rel=1e-4)
        assert other.from_base == pytest.approx(one.from_base, rel=1e-4)


def test_a_dense_mean_has_the_divergence_of_its_factors(engine, adapters):
    pairs = continuations(engine, PROMPTS, tokens=6)
    method = Eggroll()
    state = method.init(engine.base.modules("all-linear"), 0, start=adapters[1])
    (found,) = divergences(engine, method.mean(state), pairs)
    assert found.to_base == pytest.approx(divergences(engine, adapters[1], pairs)[0].to_base, rel=1e-3)


def test_the_base_is_at_no_distance_from_itself(engine):
    pairs = continuations(engine, PROMPTS, tokens=4)
    zero = Adapter({n: Factors(torch.ones(1, s.d_in), torch.zeros(s.d_out, 1))
                    for n, s in engine.base.modules("all-linear").items()})  # fmt: skip
    for members in (None, as_population(zero)):
        (found,) = divergences(engine, members, pairs)
        assert (found.to_base, found.from_base) == (pytest.approx(0, abs=1e-9), pytest.approx(0, abs=1e-9))


def test_closed_form_of_two_categories():
    p, q = torch.tensor([0.9, 0.1]).double(), torch.tensor([0.5, 0.5]).double()
    found = token_divergences((3 + p.log())[None], q.log()[None])[:, 0]
    assert found[0].item() == pytest.approx(0.9 * torch.log(p[0] / 0.5) + 0.1 * torch.log(p[1] / 0.5))
    assert found[1].item() == pytest.approx(0.5 * (torch.log(0.5 / p[0]) + torch.log(0.5 / p[1])))


def test_the_base_writes_the_same_under_one_seed_and_else_under_another(engine, adapters):
    once = continuations(engine, PROMPTS, tokens=8, seed=3)
    assert continuations(engine, PROMPTS, tokens=8, seed=3) == once
    assert continuations(engine, PROMPTS, tokens=8, seed=4) != once
    found = [divergences(engine, adapters[0], once) for _ in range(2)]
    assert found[0] == found[1]
    assert [prompt for prompt, _ in once] == engine.base.text.prompts(PROMPTS)


def test_continuations_end_where_the_model_does(engine):
    long = "a" * 250
    ((prompt, said),) = continuations(engine, [long], tokens=50)
    assert len(prompt) + len(said) <= engine.base.max_length + 1
    with pytest.raises(InputError, match="no prompt"):
        continuations(engine, [])
