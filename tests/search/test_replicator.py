"""Replicator search's variants, lines and exports; the rule itself is in test_replicator_stage_one."""

from dataclasses import replace
from functools import partial
from math import sqrt

import pytest
import torch
from dense_evaluation import dense_members, matrices, quadratic_rewards, random_target

from evolora.adapters import Adapter, Factors, ModuleSpec, geometry
from evolora.errors import ConfigError, ProtocolError
from evolora.search import from_checkpoint, make_method, to_checkpoint
from evolora.search.candidates import Candidates, diversity, fold, length
from evolora.search.replicator_dynamics import remember, select, uniform_weights
from evolora.search.replicator_mutation import Deviates, covariance, delta, isotropic, recombined
from evolora.search.replicator_state import unpack

TEMPLATE = matrices((6, 10), (8, 5)) | {"embed": ModuleSpec(7, 12, "embedding")}


def crowd_of(shared_a=False, members=5, rank=3, template=TEMPLATE, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator)
    a = {
        name: draw(rank, s.d_in) if shared_a else draw(members, rank, s.d_in) for name, s in template.items()
    }
    b = {name: draw(members, s.d_out, rank) for name, s in template.items()}
    return Candidates(template, a, b, [str(i) for i in range(members)])


def some_weights(members=5):
    return torch.rand(members, generator=torch.Generator().manual_seed(1)).double().softmax(0)


def dense(crowd):
    """All deltas of each candidate in one row, [N, d]."""
    return torch.cat([delta.flatten(1) for delta in dense_members(crowd).values()], 1).double()


def b_entries(crowd):
    return torch.cat([b.flatten(1) for b in crowd.b.values()], 1)


def collapse(state, alive=2, factor=1.0):
    """The same state with the weight on few candidates."""
    log_weights = torch.full_like(state.tensor("log_weights"), -700.0)
    log_weights[:alive] = torch.arange(alive) * factor
    return replace(state, tensors={**state.tensors, "log_weights": log_weights.log_softmax(0)})


def advance(method, state, steps=1, target=None, progress=0.0):
    target = target or random_target(TEMPLATE, 1, 0.05)
    metrics = {}
    for _ in range(steps):
        state, metrics = method.tell(state, quadratic_rewards(method.ask(state), target), progress)
    return state, metrics


# --- geometry of candidates


@pytest.mark.parametrize("shared_a", [True, False])
def test_inner_products_mean_and_diversity_equal_the_dense_ones(shared_a):
    crowd, weights = crowd_of(shared_a), some_weights()
    rows = dense(crowd)
    gram = crowd.gram()
    torch.testing.assert_close(gram, rows @ rows.T, rtol=1e-5, atol=1e-4)
    assert diversity(gram) == pytest.approx(torch.nn.functional.pdist(rows).mean().item(), rel=1e-5)
    away = weights - 0.2
    assert length(gram, away) == pytest.approx((away @ rows).norm().item(), rel=1e-5)
    mean = Adapter(crowd.mean(weights))
    whole = torch.cat([factors.delta().flatten() for factors in mean.modules.values()]).double()
    torch.testing.assert_close(whole, weights @ rows, rtol=1e-5, atol=1e-5)
    assert mean.rank == (3 if shared_a else 15)


@pytest.mark.parametrize("rank", [1, 3, 5])
@pytest.mark.parametrize("name", list(TEMPLATE))
def test_folding_gives_the_nearest_product_of_the_rank(name, rank):
    spec = TEMPLATE[name]
    generator = torch.Generator().manual_seed(2)
    b, a = (
        torch.randn(4, spec.d_out, 7, generator=generator),
        torch.randn(4, 7, spec.d_in, generator=generator),
    )
    new_b, new_a, lost = fold(b, a, rank, spec)
    assert (new_b.shape, new_a.shape) == ((4, spec.d_out, rank), (4, rank, spec.d_in))
    for i in range(4):
        u, values, v = torch.linalg.svd((b[i] @ a[i]).double())
        best = u[:, :rank] * values[:rank] @ v[:rank]
        torch.testing.assert_close((new_b[i] @ new_a[i]).double(), best, rtol=1e-4, atol=1e-4)
        assert lost[i].item() == pytest.approx(values[rank:].square().sum().item(), rel=1e-4, abs=1e-8)
    norms = new_a.norm(dim=2)  # as long as random rows are
    size = sqrt(spec.d_in / 3) if spec.kind == "embedding" else sqrt(1 / 3)
    torch.testing.assert_close(norms, torch.full_like(norms, size))


def test_folding_a_delta_of_zeros_leaves_an_a_that_can_be_used():
    b, a, _ = fold(torch.zeros(8, 6), torch.randn(6, 10), 2, ModuleSpec(8, 10))
    assert not b.any()
    assert torch.linalg.matrix_rank(a) == 2


# --- mutations


@pytest.mark.parametrize("shared_a", [True, False])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_covariance_mutations_have_the_shape_and_the_size_that_they_claim(shared_a, share):
    template = matrices((3, 2))
    crowd = crowd_of(shared_a, members=4, rank=1, template=template)
    weights, size, count = some_weights(4), 0.1, 6000

    def rows(one):
        sides = (
            [one.b["layer.0.proj"]] if shared_a else [one.b["layer.0.proj"], one.a["layer.0.proj"] * sqrt(2)]
        )
        return torch.cat([side.flatten(1) for side in sides], 1).double()  # in units of U

    z = rows(crowd)
    moved = torch.stack(
        [rows(covariance(crowd, size, Deviates(0, k, "test", 4), weights, share)) - z for k in range(count)]
    ).flatten(0, 1)
    away = z - weights @ z
    shape = (away * weights[:, None]).T @ away
    shape *= z.shape[1] / shape.trace()
    expected = size**2 * (share * shape + (1 - share) * torch.eye(z.shape[1]))
    found = moved.T @ moved / len(moved)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05 * size**2)
    assert found.trace().item() == pytest.approx(size**2 * z.shape[1], rel=0.02)
    if share == 1:
        assert torch.linalg.matrix_rank(moved, rtol=1e-5) == min(3, z.shape[1])


def test_covariance_mutations_of_twins_are_round():
    crowd = crowd_of().taken(torch.zeros(5, dtype=torch.int64))
    noise = Deviates(0, 0, "test", 5)
    one, two = covariance(crowd, 0.1, noise, some_weights(), 0.5), isotropic(crowd, 0.1, noise)
    assert all(torch.equal(one.b[name], two.b[name]) for name in TEMPLATE)


def test_antithetic_mutations_cancel_in_pairs():
    noise = Deviates(0, 3, "test", 6, antithetic=True)
    unit = noise.of("x", (4, 5))
    assert torch.equal(unit[0::2], -unit[1::2])
    assert not torch.equal(unit[0], unit[2])
    crowd = crowd_of(members=6)
    for moved in (isotropic(crowd, 0.1, noise), covariance(crowd, 0.1, noise, some_weights(6), 0.5)):
        for name in TEMPLATE:
            step = moved.b[name] - crowd.b[name]
            torch.testing.assert_close(step[0::2], -step[1::2], rtol=0, atol=1e-6)


def test_mutation_in_delta_space_is_the_truncated_sum():
    crowd, size = crowd_of(), 0.5
    noise = Deviates(0, 1, "test", 5)
    moved, lost = delta(crowd, size, noise)
    before, after, left_out, whole = dense_members(crowd), dense_members(moved), 0.0, 0.0
    for name, spec in TEMPLATE.items():
        a, b = noise.of(f"{name}.lora_A", (3, spec.d_in)), noise.of(f"{name}.lora_B", (spec.d_out, 3))
        unit = 1.0 if spec.kind == "embedding" else 1 / sqrt(spec.d_in)
        step = size * unit / sqrt(3) * b @ a
        goal = (before[name] + step).double()
        u, values, v = torch.linalg.svd(goal, full_matrices=False)
        nearest = u[..., :3] * values[:, None, :3] @ v[:, :3]
        torch.testing.assert_close(after[name].double(), nearest, rtol=1e-4, atol=1e-4)
        left_out += values[:, 3:].square().sum().item()
        whole += step.double().square().sum().item()
    assert lost == pytest.approx(sqrt(left_out / whole), rel=1e-4)
    assert 0 < lost < 1


def test_noise_in_delta_space_has_the_stated_variance_where_nothing_is_left_out():
    template = matrices((40, 30))
    crowd = crowd_of(members=20, rank=2, template=template)
    still = crowd.moved(crowd.a, {name: 0 * b for name, b in crowd.b.items()})
    moved, lost = delta(still, 0.3, Deviates(0, 0, "test", 20))
    assert lost < 1e-6
    assert dense(moved).var().item() == pytest.approx(0.3**2 / 30, rel=0.05)


@pytest.mark.parametrize("shared_a", [True, False])
def test_recombination_puts_all_at_the_weighted_mean_to_the_rank(shared_a):
    crowd, weights = crowd_of(shared_a), some_weights()
    merged, error = recombined(crowd, weights)
    deltas, rows = dense_members(crowd), dense_members(merged)
    lost = whole = 0.0
    for name in TEMPLATE:
        mean = torch.einsum("n,nij->ij", weights, deltas[name].double())
        assert all(torch.equal(rows[name][0], other) for other in rows[name])
        lost += (rows[name][0].double() - mean).square().sum().item()
        whole += mean.square().sum().item()
    assert sqrt(lost / whole) == pytest.approx(0.0 if shared_a else error, abs=1e-5)
    assert (error == 0) == shared_a


# --- the rule with options


def test_mutated_twins_stay_twins_unless_resampled_first():
    for first in (False, True):
        method = make_method("replicator", population=9, resample_first=first)
        state, _ = advance(method, method.init(TEMPLATE, 0))
        crowd = method.ask(collapse(state))
        rows, parents = dense(crowd), [parent for (parent,) in crowd.parents]
        assert len(set(parents)) == 2
        assert len(rows.unique(dim=0)) == (9 if first else 2)


def test_annealed_mutations_shrink_with_the_budget():
    method = make_method("replicator", anneal=True, diffusion=0.02, population=50, kappa=0)
    plain = method.model_copy(update={"anneal": False})
    state, _ = advance(method, method.init(TEMPLATE, 0), progress=0.75)
    half, full = (b_entries(one.ask(state)) - b_entries(unpack(state)[0]) for one in (method, plain))
    torch.testing.assert_close(half, full * sqrt(0.25), rtol=1e-3, atol=1e-6)
    state, _ = advance(method, state, progress=1.0)
    assert torch.equal(b_entries(method.ask(state)), b_entries(unpack(state)[0]))


def test_standardised_rewards_select_alike_in_any_unit():
    method = make_method("replicator", standardise=True, kappa=1.5, lambda_m=1e3)
    rewards = torch.randn(8, 1, generator=torch.Generator().manual_seed(5))
    found = []
    for told in (rewards, 1000 * rewards - 7):
        state = method.init(TEMPLATE, 0)
        method.ask(state)
        found.append(method.tell(state, told)[0].tensor("log_weights"))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)
    y = rewards[:, 0].double()
    torch.testing.assert_close(
        found[0], (1.5 * (y - y.mean()) / y.std(correction=0)).log_softmax(0), rtol=1e-5, atol=1e-5
    )


def test_own_minibatches_are_disjoint_and_rotate():
    method = make_method("replicator", population=3, common_minibatches=False, kappa=0, lambda_m=1e4)
    state, rewards = method.init(TEMPLATE, 0), torch.arange(21.0).view(3, 7)
    for step in range(4):
        method.ask(state)
        state, _ = method.tell(state, rewards)
        expected = [rewards[i, (i + step) % 3 :: 3].mean().item() for i in range(3)]
        assert state.tensor("memory").tolist() == pytest.approx(expected)
    method.ask(state)
    with pytest.raises(ProtocolError, match=r"2 prompts for 3 candidates.*raise batch"):
        method.tell(state, rewards[:, :2])


def test_constant_rewards_leave_the_weights_even_and_only_mutation_moves():
    method = make_method("replicator", population=7, diffusion=0.01)
    state = method.init(TEMPLATE, 0)
    for level in (3.0, -1e6, 0.1, 0.1):
        old = method.ask(state)
        state, metrics = method.tell(state, torch.full((7, 2), level))
        assert torch.equal(state.tensor("log_weights"), uniform_weights(7))
        assert (metrics["update_norm"], metrics["no_spread"], metrics["resampled"]) == (0, 1, 0)
        noise = Deviates(0, state.step, "replicator/mutation", 7)
        for name, stack in method.ask(state).block(range(7)).items():
            unit = noise.of(f"{name}.lora_B", tuple(stack.b.shape[1:]))
            assert torch.equal(stack.b, old.block(range(7))[name].b + sqrt(0.02) * unit)


def test_a_candidate_without_a_reward_is_neither_favoured_nor_punished():
    log_weights = torch.tensor([0.1, 0.4, 0.2, 0.3], dtype=torch.float64).log()
    memory = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    rewards = torch.tensor([5.0, torch.nan, 1.0, 9.0], dtype=torch.float64)
    after = remember(memory, rewards, log_weights, 0.7)
    alpha = 1 - torch.tensor(-0.7, dtype=torch.float64).exp()
    known = torch.tensor([0, 2, 3])
    torch.testing.assert_close(after[known], memory[known] + alpha * (rewards - memory)[known])
    share = log_weights[known].softmax(0)
    assert after[1].item() == pytest.approx((2 + (share * (after - memory)[known]).sum()).item())
    higher = remember(memory + 50, rewards + 50, log_weights, 0.7)
    torch.testing.assert_close(higher - 50, after)  # the level of a minibatch is not held against it

    grown = select(log_weights, after, 0.5, ~rewards.isnan()) - log_weights
    mean = (share * after[known]).sum()
    relative = grown - grown[1]  # its own growth before normalisation is 0
    torch.testing.assert_close(relative[known], 0.5 * (after[known] - mean))


def test_a_search_leaves_a_candidate_without_a_reward_out_of_the_selection():
    method = make_method("replicator", population=4, kappa=3.0, lambda_m=0.5)
    state = method.init(TEMPLATE, 0)
    for told in ([0.1, 0.2, 0.9, 0.3], [0.4, 0.1, torch.nan, 0.2]):
        before = state
        method.ask(state)
        state, metrics = method.tell(state, torch.tensor(told)[:, None])
    assert metrics["failed"] == 1
    grown = state.tensor("log_weights") - before.tensor("log_weights")
    known, memory = torch.tensor([0, 1, 3]), state.tensor("memory")
    mean = (before.tensor("log_weights")[known].softmax(0) * memory[known]).sum()
    torch.testing.assert_close((grown - grown[2])[known], 3.0 * (memory[known] - mean))


def test_a_search_goes_on_with_its_spread_after_a_first_step_without_any_reward():
    method = make_method("replicator")
    state = method.init(TEMPLATE, 0)
    method.ask(state)
    state, _ = method.tell(state, torch.full((8, 2), torch.nan))
    assert diversity(method.ask(state).gram()) > 0
    assert not dense(method.mean(state)).any()


# --- lines and exports


def test_the_state_knows_who_descends_from_whom():
    method = make_method("replicator", population=6, kappa=0)
    state, _ = advance(method, method.init(TEMPLATE, 0), 2)
    lines = [[] for _ in range(6)]
    for _ in range(3):
        crowd = method.ask(state := collapse(state))
        parents = [int(parent.split(".")[1]) for (parent,) in crowd.parents]
        lines = [[f"{state.step - 1}.{p}", *lines[p]] for p in parents]
        state, metrics = advance(method, state)
        assert metrics["resampled"] == 1
        assert metrics["ancestors"] == len(set(state.tensor("ancestors").tolist()))
    state = from_checkpoint(TEMPLATE, *to_checkpoint(state))
    members = [one.provenance["member"] for one in method.candidates(state)]
    assert [member["lineage"] for member in members] == lines
    assert [member["ancestor"] for member in members] == [int(line[-1].split(".")[1]) for line in lines]
    assert [member["id"] for member in members] == [f"{state.step - 1}.{i}" for i in range(6)]


def test_recombination_ends_all_lines():
    method = make_method("replicator", population=4, recombine="step")
    state, metrics = advance(method, method.init(TEMPLATE, 0), 3)
    assert metrics["ancestors"] == 1
    assert {tuple(one.provenance["member"]["lineage"]) for one in method.candidates(state)} == {("1.all",)}
    assert method.ask(state).parents == (tuple(f"2.{i}" for i in range(4)),) * 4


@pytest.mark.parametrize("factors", ["b", "ab"])
def test_best_mean_and_all_are_what_was_judged(factors):
    method = make_method("replicator", population=5, rank=2, factors=factors, kappa=100.0)
    state, _ = advance(method, method.init(TEMPLATE, 0), 2)
    crowd = method.ask(state)
    rewards = quadratic_rewards(crowd, random_target(TEMPLATE, 1, 0.05))
    state, metrics = method.tell(state, rewards)
    exported = method.members_to_export(state)
    assert set(exported) == {"best", "mean", "00", "01", "02", "03", "04"}
    rows, weights = dense(crowd), state.tensor("log_weights").exp()
    best = int(weights.argmax())
    assert sum(exported[f"0{i}"].provenance["member"]["weight"] for i in range(5)) == pytest.approx(1)
    close = partial(torch.testing.assert_close, rtol=1e-5, atol=1e-7)
    flat = lambda one: torch.cat([f.delta().flatten() for f in one.modules.values()]).double()
    for i in range(5):
        close(flat(exported[f"0{i}"]), rows[i])
        assert all(torch.equal(f.b, crowd.b[name][i]) for name, f in exported[f"0{i}"].modules.items())
    close(flat(exported["best"]), rows[best])
    close(flat(method.adapter(state)), rows[best])
    assert metrics["delta_norm"] == pytest.approx(rows[best].norm().item(), rel=1e-5)
    mean = method.model_copy(update={"export": "mean"})
    whole = weights @ rows
    torch.testing.assert_close(dense(mean.mean(state))[0], whole, rtol=1e-5, atol=1e-6)
    adapter = mean.adapter(state)
    assert adapter.rank == 2
    error = ((flat(adapter) - whole).norm() / whole.norm()).item()
    assert error == pytest.approx(adapter.provenance.get("truncation_error", 0.0), abs=1e-5)
    assert (error > 1e-4) == (factors == "ab")


def test_an_equal_weight_is_decided_by_the_memory():
    method = make_method("replicator", population=4, kappa=0, lambda_m=1e3)
    state = method.init(TEMPLATE, 0)
    crowd = method.ask(state)
    state, _ = method.tell(state, torch.tensor([[1.0], [3.0], [2.0], [0.0]]))
    assert torch.equal(dense(method.mean(state))[0], dense(crowd)[1])


def test_a_start_of_a_smaller_rank_is_where_all_begin():
    start = Adapter({"layer.0.proj": Factors(torch.randn(2, 10), torch.randn(6, 2), 0.5)})
    method = make_method("replicator", factors="ab", spread=1e-4)
    state = method.init(TEMPLATE, 0, start)
    assert geometry.distance(method.adapter(state), start) < 1e-5
    assert all(geometry.distance(one, start) < 1e-5 for one in method.candidates(state))
    spread = dense(method.ask(state)) - dense(method.mean(state))
    assert 0 < spread.norm(dim=1).min() < spread.norm(dim=1).max() < 0.1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"antithetic": True, "population": 7}, "7 has no whole antithetic pairs"),
        ({"mutation_space": "delta"}, "set factors to ab"),
        (
            {"mutation_space": "delta", "factors": "ab", "mutation": "covariance"},
            "one of factors",
        ),
        ({"population": 1}, "population should be greater"),
        ({"lambda_m": 0}, "lambda_m should be greater"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        make_method("replicator", **options)
