import pytest
import torch

from evolora.adapters import Adapter, Factors, as_population
from evolora.diagnostics import deltas as module
from evolora.diagnostics.deltas import base_weight, changes, deltas_of, dense, norms
from evolora.errors import AdapterError
from evolora.search.perturbation import FullRank, Perturbation
from evolora.search.perturbed import Alone, AroundDelta, Layout


def test_an_adapter_and_a_population_of_it_have_the_same_deltas(make_adapter, shapes):
    adapter = make_adapter(shapes)
    members = as_population([make_adapter(shapes, name="other", rank=3), adapter])
    wanted = {name: factors.delta() for name, factors in adapter.modules.items()}
    for found in (deltas_of(adapter), deltas_of(members, 1)):
        torch.testing.assert_close(dense(found), wanted)


def test_magnitudes_come_along_and_only_where_they_are(make_adapter, shapes):
    ones = {name: torch.ones(spec.d_out) for name, spec in shapes.items()}
    members = as_population([make_adapter(shapes), make_adapter(shapes, dora=ones)])
    assert all(delta.magnitude is None for delta in deltas_of(members, 0).values())
    assert all(torch.equal(deltas_of(members, 1)[name].magnitude, ones[name]) for name in shapes)
    with pytest.raises(AdapterError, match="DoRA"):
        dense(deltas_of(members, 1))


@pytest.mark.parametrize("noise", [Perturbation(0, 1, 2), FullRank(0, 1)], ids=["low rank", "full rank"])
def test_members_around_a_mean_are_mean_and_noise(noise, shapes, draw):
    mean = {name: draw(spec.d_out, spec.d_in, name=name) for name, spec in shapes.items()}
    found = deltas_of(AroundDelta(shapes, mean, noise, 0.1, Layout(4, antithetic=True)), 3)
    for name, spec in shapes.items():
        unit = noise.dense(name, (spec.d_out, spec.d_in), [1])[0]
        torch.testing.assert_close(found[name], mean[name] - 0.1 * unit)


def test_the_mean_itself_is_not_copied(shapes, draw):
    mean = {name: draw(spec.d_out, spec.d_in, name=name) for name, spec in shapes.items()}
    found = deltas_of(Alone(shapes, mean))
    assert all(found[name] is mean[name] for name in shapes)


def test_norms_of_factors_and_of_dense_deltas(make_adapter, shapes):
    adapter = make_adapter(shapes)
    wanted = {name: f.delta().norm().item() for name, f in adapter.modules.items()}
    assert norms(deltas_of(adapter)) == pytest.approx(wanted, rel=1e-5)
    assert norms(dense(deltas_of(adapter))) == pytest.approx(wanted, rel=1e-5)


def test_blocks_of_changes_are_the_rows_of_the_whole(make_adapter, shapes, draw, monkeypatch):
    monkeypatch.setattr(module, "_ENTRIES", 100)
    magnitude = draw(30, name="m").abs()
    factors = make_adapter({"three": shapes["three"]}, dora={"three": magnitude}).modules["three"]
    weight = draw(30, 40, name="w")
    moved = weight + factors.delta()
    rescaled = magnitude[:, None] * moved / moved.norm(dim=1, keepdim=True) - weight
    plain = Factors(factors.a, factors.b, factors.scale)
    for delta, wanted in ((factors, rescaled), (plain, factors.delta()), (factors.delta(), factors.delta())):
        blocks = list(changes(weight, delta))
        assert len(blocks) == 15
        torch.testing.assert_close(torch.cat([old for old, _ in blocks]).float(), weight)
        torch.testing.assert_close(torch.cat([new for _, new in blocks]).float(), wanted)


def test_a_weight_stands_as_its_module_maps(tiny_gpt2, char_tokenizer):
    from evolora.engine import Base

    base = Base(tiny_gpt2, char_tokenizer, "tiny")
    for name, spec in base.structure.specs.items():
        assert base_weight(base, name).shape == (spec.d_out, spec.d_in)
    adapter = Adapter({n: Factors(torch.ones(1, s.d_in), torch.ones(s.d_out, 1)) for n, s in
                       base.modules("all-linear").items()})  # fmt: skip
    assert all(len(list(changes(base_weight(base, n), d))) == 1 for n, d in adapter.modules.items())
