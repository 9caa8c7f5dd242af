import pytest
import torch

from evolora.adapters import Factors
from evolora.diagnostics import deltas as blocks
from evolora.diagnostics.sparsity import sparsities, sparsity


def brute_force(weight, change, thresholds):
    weight, change = weight.double(), change.double()
    rms = weight.square().mean().sqrt()
    below = {t: (change.abs() < t * rms).double().mean().item() for t in thresholds}
    rounds = (weight + change).float().bfloat16() == weight.float().bfloat16()
    return below, rounds.double().mean().item(), (change.square().mean().sqrt() / rms).item()


@pytest.mark.parametrize("size", [1e-4, 1e-2, 1.0])
def test_counting_in_blocks_is_counting_all(draw, monkeypatch, size):
    monkeypatch.setattr(blocks, "_ENTRIES", 50)
    weight, thresholds = draw(12, 20, name="w"), (1e-4, 1e-2, 1.0)
    factors = Factors(draw(2, 20, name="a"), size * draw(12, 2, name="b"), 0.5)
    for delta in (factors, factors.delta()):
        found = sparsity(weight, delta, thresholds)
        below, swallowed, relative = brute_force(weight, factors.delta(), thresholds)
        assert found.below == pytest.approx(below)
        assert found.swallowed == pytest.approx(swallowed)
        assert found.relative == pytest.approx(relative, rel=1e-5)
        assert found.entries == 240


def test_bf16_swallows_what_is_far_below_its_last_bit_and_nothing_far_above():
    weight = torch.full((4, 8), 1.0)
    assert sparsity(weight, torch.full((4, 8), 2.0**-10)).swallowed == 1
    assert sparsity(weight, torch.full((4, 8), 2.0**-6)).swallowed == 0
    half = torch.tensor([2.0**-10, 2.0**-6]).repeat(4, 4)
    assert sparsity(weight, half).swallowed == 0.5


def test_no_change_at_all_is_below_every_threshold_and_all_swallowed(draw):
    found = sparsity(draw(4, 8), torch.zeros(4, 8))
    assert set(found.below.values()) == {1.0}
    assert (found.swallowed, found.relative) == (1.0, 0.0)


def test_the_whole_weighs_modules_by_their_entries(engine, make_adapter):
    adapter = make_adapter(engine.base.modules("all-linear"), size=0.01)
    found = sparsities(engine.base, adapter.modules)
    entries = sum(part.entries for part in found.modules.values())
    assert found.whole.entries == entries
    swallowed = sum(part.swallowed * part.entries for part in found.modules.values())
    assert found.whole.swallowed == pytest.approx(swallowed / entries)
    assert 0 < found.whole.below[1e-4] < found.whole.below[1e-2] <= 1
