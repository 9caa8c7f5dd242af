import pytest
import torch

from evolora.adapters import geometry
from evolora.studies.replicator.merge_weights import SEARCHERS
from evolora.studies.replicator.merges import Bench
from evolora.studies.trial import TINY


@pytest.fixture(scope="module")
def bench():
    return Bench(3, {**TINY, "steps": 6, "validation": 8, "test": 8})


def test_a_merge_at_a_corner_is_the_specialist(bench):
    merges = bench.at(torch.eye(3))
    for place, parent in enumerate(bench.parents):
        stacks = merges.block([place])
        for name, factors in parent.modules.items():
            assert torch.allclose(stacks[name].b[0] @ stacks[name].a[0], factors.delta(), atol=1e-6)
        assert geometry.norm(parent) > 0


def test_search_choice_and_test_share_no_prompt(bench):
    for task in bench.tasks:
        half = len(task.validation) // 2
        parts = task.validation[:half], task.validation[half:], task.test, task.train
        prompts = [example.prompt for part in parts for example in part]
        assert len(prompts) == len(set(prompts))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("replicator", {"kappa": 20.0, "diffusion": 0.01}),
        ("dirichlet", {"mass": 2.0}),
        ("cma", {"sigma": 0.3}),
    ],
)
def test_every_searcher_finds_weights_that_are_rewarded(name, options, bench, monkeypatch):
    wanted, asked = torch.tensor([1.2, 0.2, 0.5], dtype=torch.float64), []

    def judged(members, part):
        stack = members.block(range(len(members)))
        points = torch.stack([weights_of(bench, stack, member) for member in range(len(members))])
        asked.append((len(members), part))
        return -(points - wanted).square()

    monkeypatch.setattr(bench, "judged", judged)
    found = SEARCHERS[name](bench, 4, 64, **options)
    assert (found - wanted).norm() < 0.75 * (1 / 3 - wanted).norm()
    assert sum(count for count, _ in asked) == 64
    assert {part for _, part in asked} == {"search"}


def weights_of(bench, stack, member):
    """The weights of a merge, read off its B."""
    name = next(iter(bench.map.moved))
    scale = stack[name].b[member] / bench.map.b[name]
    return torch.stack([scale[0, bench.map.index[name] == k].mean() for k in range(3)]).double()


def test_the_report_is_of_fresh_prompts_and_outside_the_ledger(bench):
    before = bench.engine.ledger.snapshot()
    found = bench.report(torch.tensor([0.5, 0.5, 0.5]).double())
    assert bench.engine.ledger.snapshot() == before
    assert found["mass"] == pytest.approx(1.5)
    assert found["best_parent"] == max(sum(row) / 3 for row in found["parents"])
    assert found["worst"] == min(found["by_task"])
