import pytest
import torch

from evolora.adapters import ModuleSpec
from evolora.search import Eggroll
from evolora.search.truncation import RANKS, narrow_to, relative_error, truncate


def delta(rank, noise=0.0, shape=(40, 60), seed=0):
    generator = torch.Generator().manual_seed(seed)
    low = torch.randn(shape[0], rank, generator=generator) @ torch.randn(rank, shape[1], generator=generator)
    return low + noise * torch.randn(shape, generator=generator)


@pytest.mark.parametrize("shape", [(40, 60), (60, 40)])
@pytest.mark.parametrize("rank", [1, 7, 40, 100])
def test_narrowing_equals_truncating_anew(shape, rank):
    dense = delta(30, 0.1, shape)
    narrowed, anew = truncate(dense, 10**6).narrow(rank), truncate(dense, rank)
    torch.testing.assert_close(narrowed.factors.delta(), anew.factors.delta(), atol=1e-4, rtol=1e-4)
    assert narrowed.error == pytest.approx(anew.error, abs=1e-6)
    assert narrowed.error == pytest.approx(
        ((dense - anew.factors.delta()).norm() / dense.norm()).item(), abs=1e-5
    )


def test_the_rank_is_the_smallest_that_keeps_the_tolerance():
    parts = {"x": truncate(delta(12, 0.01), 10**6), "y": truncate(delta(3), 10**6)}
    chosen = narrow_to(parts, 0.1)
    assert {part.factors.rank for part in chosen.values()} == {16}
    assert relative_error(chosen.values()) <= 0.1
    assert relative_error(part.narrow(8) for part in parts.values()) > 0.1


def test_a_search_exports_at_an_automatic_rank_and_says_what_it_leaves_out():
    method = Eggroll(population=32, sigma=0.1, lr=1.0)
    state = method.init({"m": ModuleSpec(64, 48)}, 0)
    assert method.adapter(state).rank == RANKS[0]
    for step in range(4):
        method.ask(state)
        rewards = torch.randn(32, 3, generator=torch.Generator().manual_seed(step))
        state, _ = method.tell(state, rewards, (step + 1) / 4)
    adapter = method.adapter(state)
    assert adapter.rank in RANKS
    assert 0 < adapter.provenance["truncation_error"] <= 0.1
    assert method.adapter(state, rank=2).rank == 2
