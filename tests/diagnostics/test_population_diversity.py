from itertools import combinations

import pytest
import torch

from evolora.diagnostics.deltas import deltas_of, dense
from evolora.diagnostics.population import distances, distinct_lineages, diversity, effective_sample_size
from evolora.errors import ProtocolError
from evolora.search.perturbation import FullRank, Perturbation
from evolora.search.perturbed import AroundDelta, Layout


def test_the_effective_size_of_weights():
    assert effective_sample_size([0.25] * 4) == pytest.approx(4)
    assert effective_sample_size([0, 3, 0]) == pytest.approx(1)
    assert effective_sample_size(torch.tensor([2.0, 1.0, 1.0])) == pytest.approx(16 / 6)
    for wrong in ([], [0, 0], [1, -1e-9], [float("nan")]):
        with pytest.raises(ProtocolError, match="weights"):
            effective_sample_size(wrong)


def far_apart(population):
    members = [dense(deltas_of(population, i)) for i in range(len(population))]
    return [
        sum((a[n] - b[n]).double().square().sum().item() for n in a) ** 0.5
        for a, b in combinations(members, 2)
    ]


@pytest.mark.parametrize("antithetic", [True, False])
@pytest.mark.parametrize("noise", [Perturbation(0, 1, 2), FullRank(0, 1)], ids=["low rank", "full rank"])
def test_diversity_is_the_mean_of_dense_distances(shapes, draw, noise, antithetic):
    mean = {name: draw(spec.d_out, spec.d_in, name=name) for name, spec in shapes.items()}
    population = AroundDelta(shapes, mean, noise, 0.1, Layout(4, antithetic))
    apart = far_apart(population)
    assert diversity(population) == pytest.approx(sum(apart) / len(apart), rel=1e-4)


def test_adapters_of_other_modules_and_ranks_have_distances_too(make_adapter, shapes):
    first = make_adapter(shapes, rank=3)
    second = make_adapter({"one": shapes["one"]}, name="b")
    table = distances([first, second, first])
    one, other = dense(first.modules), dense(second.modules)
    parts = [one["one"] - other["one"], one["two"], one["three"]]
    wanted = sum(part.square().sum().item() for part in parts) ** 0.5
    assert table[0, 1].item() == pytest.approx(wanted, rel=1e-5)
    assert table[0, 2].item() == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(table, table.T)
    assert diversity([first]) == 0


def test_lineages_are_the_founders_with_descendants():
    generations = [[0, 1, 2, 3], [0, 0, 3, 3], [2, 2, 3, 1], [0, 1, 2, 0]]
    assert distinct_lineages(generations) == [4, 2, 2, 1]
    assert distinct_lineages([]) == []
    with pytest.raises(ProtocolError, match="parent"):
        distinct_lineages([[0, 1], [2, 0]])
