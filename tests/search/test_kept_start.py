"""What a search began at is small beside its noise; no export may leave it out."""

import pytest
import torch
from dense_evaluation import dense_members, matrices

from evolora.adapters import Adapter, Factors
from evolora.search import from_checkpoint, make_method, to_checkpoint

TEMPLATE = matrices((40, 60), (50, 40))
SEARCHES = [
    ("eggroll", {"sigma": 0.5, "population": 8, "lr": 2.0}),
    ("openai_es", {"sigma": 0.5, "population": 8, "lr": 2.0}),
    ("random_search", {"sigma": 0.5, "population": 8}),
    ("mezo", {"sigma": 0.5, "lr": 0.5}),
]


def start():
    draw = torch.Generator().manual_seed(3)
    return Adapter(
        {
            name: Factors(
                0.03 * torch.randn(2, spec.d_in, generator=draw),
                torch.randn(spec.d_out, 2, generator=draw),
                scale=0.5,
            )
            for name, spec in TEMPLATE.items()
        }
    )


def searched(name, options, steps=6):
    method = make_method(name, **options)
    state = method.init(TEMPLATE, 0, start())
    for step in range(steps):
        method.ask(state)
        draw = torch.Generator().manual_seed(step)
        rewards = torch.randn(method.members(state), 4, generator=draw)
        state, _ = method.tell(state, rewards, (step + 1) / 10)
    return method, state


@pytest.mark.parametrize(("name", "options"), SEARCHES)
def test_a_truncated_export_holds_the_start_whole(name, options):
    method, state = searched(name, options)
    begun = start()
    rank = 4
    adapter = method.adapter(state, rank=rank)
    mean = {module: delta[0] for module, delta in dense_members(method.mean(state)).items()}
    squares = whole = 0.0
    for module, factors in adapter.modules.items():
        assert factors.rank == rank
        given = begun.modules[module].delta()
        rest = mean[module] - given
        u, s, v = torch.linalg.svd(rest.double())
        best = (u[:, :2] * s[:2]) @ v[:2]
        torch.testing.assert_close(factors.delta().double(), given + best, atol=1e-3, rtol=1e-3)
        squares += (factors.delta() - mean[module]).square().sum().item()
        whole += mean[module].square().sum().item()
    assert adapter.provenance["truncation_error"] == pytest.approx((squares / whole) ** 0.5, rel=1e-3)


@pytest.mark.parametrize(("name", "options"), SEARCHES)
def test_before_the_first_step_the_export_is_the_start(name, options):
    method, state = searched(name, options, steps=0)
    for module, factors in method.adapter(state).modules.items():
        torch.testing.assert_close(factors.delta(), start().modules[module].delta(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("name", "options"), SEARCHES)
def test_a_rank_without_room_truncates_all_and_a_checkpoint_keeps_the_start(name, options):
    method, state = searched(name, options)
    assert method.adapter(state, rank=2).rank == 2
    again = from_checkpoint(TEMPLATE, *to_checkpoint(state))
    one, two = method.adapter(state, rank=5), method.adapter(again, rank=5)
    for module in TEMPLATE:
        assert torch.equal(one.modules[module].a, two.modules[module].a)
