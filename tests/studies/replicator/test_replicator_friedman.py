import pytest
import torch
from torch import nn

from evolora.studies.replicator.friedman import (
    HIDDEN,
    INPUTS,
    PARAMETERS,
    SIZES,
    ReplicatorFriedman,
    _Data,
    _first,
    _predict,
)


def test_the_network_is_the_one_it_is_said_to_be():
    theta = torch.stack([_first(seed) for seed in range(3)])
    x = torch.rand(5, INPUTS, dtype=torch.float64)
    for row, found in zip(theta, _predict(theta, x), strict=True):
        net = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1)).double()
        nn.utils.vector_to_parameters(row, net.parameters())
        assert sum(p.numel() for p in net.parameters()) == PARAMETERS
        assert torch.allclose(net(x)[:, 0], found)


def test_the_data_are_friedmans_and_no_split_shares_a_row():
    data = _Data(3)
    assert {name: len(y) for name, (_, y) in data.splits.items()} == SIZES
    rows = torch.cat([x for x, _ in data.splits.values()])
    assert len(rows.unique(dim=0)) == len(rows)
    x, y = data.splits["test"]
    clean = (
        10 * torch.sin(torch.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    )
    assert (y - clean).std().item() == pytest.approx(1, abs=0.1)
    assert (y - clean).mean().item() == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "adam", "lr": 0.03, "weight_decay": 0.0},
        {"method": "replicator", "kappa": 3.0, "diffusion": 6e-3},
        {"method": "replicator", "recombine": "step", "standardise": True, "kappa": 4.0, "diffusion": 1e-2},
    ],
    ids=["adam", "replicator", "mean shift"],
)
def test_each_arm_learns_and_repeats_to_the_bit(options):
    study = ReplicatorFriedman()
    found = study.cell(options, 5, {"evaluations": 240})
    assert found["test"] < 0.8 * found["start"]
    assert found == study.cell(options, 5, {"evaluations": 240})
    assert found["start"] == study.cell(options, 5, {"evaluations": 12})["start"]
