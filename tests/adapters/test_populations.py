from __future__ import annotations

import pytest
import torch

from evolora.adapters import Adapter, Stacked, as_population
from evolora.errors import AdapterError

NARROW = {"q": (5, 6, 1, "linear"), "emb": (4, 9, 2, "embedding")}
WIDE = {"q": (5, 6, 3, "linear"), "k": (2, 6, 2, "linear")}


@pytest.fixture
def members(make_adapter):
    return [
        make_adapter(NARROW, 1, scale=0.5, name="narrow"),
        make_adapter(WIDE, 2, scale=-2.0, name="wide"),
        make_adapter({"k": (2, 6, 1, "linear")}, 3, dora=True, name="dora"),
    ]


def deltas(stack):
    return stack.b @ stack.a


def assert_members(population, block, adapters):
    for name in population.specs:
        for delta, adapter in zip(deltas(block[name]), adapters, strict=True):
            factors = adapter.modules.get(name)
            expected = torch.zeros_like(delta) if factors is None else factors.delta()
            torch.testing.assert_close(delta, expected, rtol=1e-6, atol=1e-6)


def test_ranks_and_module_sets_are_padded_exactly(members):
    population = Stacked(members)
    assert dict(population.ranks) == {"q": 3, "emb": 2, "k": 2}
    assert len(population) == 3
    assert_members(population, population.block([0, 1, 2]), members)


def test_the_padding_is_zeros(members):
    block = Stacked(members).block([0, 2])
    assert torch.equal(block["q"].a[0, 1:], torch.zeros(2, 6))
    assert torch.equal(block["q"].b[0, :, 1:], torch.zeros(5, 2))
    assert not block["q"].a[1].any()
    assert not block["emb"].b[1].any()


def test_a_block_may_hold_any_members_in_any_order(members):
    population = Stacked(members)
    assert_members(population, population.block([2, 0, 2]), [members[2], members[0], members[2]])


def test_magnitudes_stand_where_they_are_and_nan_elsewhere(members):
    block = Stacked(members).block([1, 2])
    assert torch.isnan(block["k"].magnitude[0]).all()
    assert torch.equal(block["k"].magnitude[1], members[2].modules["k"].magnitude)
    assert block["q"].magnitude is None


def test_a_selection_computes_what_its_members_compute(members):
    population = Stacked(members, ids=("a", "b", "c"))
    chosen = population.select([2, 0]).select([1, 0])
    assert tuple(chosen.ids) == ("a", "c")
    assert_members(chosen, chosen.block([0, 1]), [members[0], members[2]])


def test_a_selection_keeps_parents(members):
    population = Stacked(members)
    population.parents = (("x",), ("x", "y"), ())
    assert population.select([1, 2]).parents == (("x", "y"), ())
    assert tuple(Stacked(members).select([0]).parents) == ()


def test_the_adapters_are_not_touched_by_stacking(members):
    before = [f.a.clone() for f in members[0].modules.values()]
    block = Stacked(members).block([0])
    for stack in block.values():
        stack.a.add_(1)
        stack.b.add_(1)
    assert all(torch.equal(f.a, a) for f, a in zip(members[0].modules.values(), before, strict=True))


def test_shapes_that_disagree_are_refused_with_the_module(make_adapter):
    with pytest.raises(AdapterError, match=r"q: .*different bases"):
        Stacked([make_adapter({"q": (5, 6, 1, "linear")}), make_adapter({"q": (5, 7, 1, "linear")})])
    with pytest.raises(AdapterError, match="at least one"):
        Stacked([])


def test_one_adapter_a_list_and_a_population_are_all_populations(members):
    population = as_population(members)
    assert as_population(population) is population
    assert tuple(population.ids) == ("narrow", "wide", "dora")
    assert len(as_population(members[0])) == 1


def test_an_adapter_cannot_be_changed(members):
    with pytest.raises(AttributeError):
        members[0].base = "other"
    with pytest.raises(TypeError):
        members[0].modules["q"] = None
    assert isinstance(members[0], Adapter)
