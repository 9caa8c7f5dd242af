import numpy as np
import pytest
import torch
from scipy.stats import linregress

from evolora.adapters import Factors
from evolora.diagnostics import deltas as blocks
from evolora.diagnostics.decomposition import change_of, decompose
from evolora.diagnostics.deltas import base_weight


def brute_force(before, after):
    before, after = before.double().numpy(), after.double().numpy()
    old, new = np.linalg.norm(before, axis=1), np.linalg.norm(after, axis=1)
    cosine = (before * after).sum(1) / (old * new)
    return np.abs(new - old).mean(), (1 - cosine).mean(), np.abs(new - old).sum() / old.sum()


def as_tuple(change):
    return change.magnitude, change.direction, change.relative


def test_lora_and_dora_against_dense_weights(draw, monkeypatch):
    monkeypatch.setattr(blocks, "_ENTRIES", 50)
    weight = draw(12, 20, name="w")
    a, b, magnitude = draw(2, 20, name="a"), 0.1 * draw(12, 2, name="b"), 5 + draw(12, name="m")
    moved = weight + 0.5 * b @ a
    for delta, after in (
        (Factors(a, b, 0.5), moved),
        (0.5 * b @ a, moved),
        (Factors(a, b, 0.5, magnitude), magnitude[:, None] * moved / moved.norm(dim=1, keepdim=True)),
    ):
        assert as_tuple(change_of(weight, delta)) == pytest.approx(brute_force(weight, after), rel=1e-4)


def test_a_change_of_length_alone_turns_nothing(draw):
    weight, nothing = draw(6, 9, name="w"), torch.zeros(6, 1)
    norms = weight.norm(dim=1)
    found = change_of(weight, Factors(torch.ones(1, 9), nothing, magnitude=1.5 * norms))
    assert found.direction == pytest.approx(0, abs=1e-14)
    assert found.magnitude == pytest.approx(0.5 * norms.mean().item(), rel=1e-6)
    assert found.relative == pytest.approx(0.5, rel=1e-6)
    assert change_of(weight, 0.5 * weight).direction == pytest.approx(0, abs=1e-14)


def test_a_turn_alone_changes_no_length(draw):
    weight, angle = torch.zeros(3, 4), 0.3
    weight[:, 0] = torch.tensor([1.0, 2.0, 5.0])
    turned = torch.zeros(3, 4)
    turned[:, 0], turned[:, 1] = weight[:, 0] * np.cos(angle), weight[:, 0] * np.sin(angle)
    found = change_of(weight, turned - weight)
    assert found.magnitude == pytest.approx(0, abs=1e-6)
    assert found.direction == pytest.approx(1 - np.cos(angle), rel=1e-5)


def test_a_tiny_turn_is_not_lost_to_rounding():
    weight = torch.tensor([[1.0, 0.0]])
    assert change_of(weight, torch.tensor([[0.0, 1e-7]])).direction == pytest.approx(5e-15, rel=1e-3)


def test_channels_of_zeros_have_no_direction():
    weight = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    found = change_of(weight, torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
    assert found.direction == 0
    assert found.magnitude == pytest.approx(0.5)
    assert np.isnan(change_of(torch.zeros(2, 2), torch.ones(2, 2)).direction)


def test_slope_and_correlation_are_those_of_a_regression(engine, make_adapter):
    adapter = make_adapter(engine.base.modules("all-linear"))
    found = decompose(engine.base, adapter.modules)
    changes = [
        brute_force(base_weight(engine.base, n), base_weight(engine.base, n) + f.delta())
        for n, f in adapter.modules.items()
    ]
    line = linregress([direction for _, direction, _ in changes], [grown for grown, _, _ in changes])
    assert found.slope == pytest.approx(line.slope, rel=1e-3)
    assert found.correlation == pytest.approx(line.rvalue, rel=1e-3)


def test_one_module_has_no_slope(engine, make_adapter):
    one = dict([next(iter(engine.base.modules("all-linear").items()))])
    found = decompose(engine.base, make_adapter(one).modules)
    assert np.isnan(found.slope)
    assert np.isnan(found.correlation)
