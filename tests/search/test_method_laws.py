from functools import partial

import dense_evaluation
import numpy as np
import pytest
import torch
from dense_evaluation import (
    GaussianPolicy,
    QuadraticEngine,
    dense_products,
    matrices,
    random_target,
    row_norms,
)

from evolora.adapters import DENSE, Adapter, Factors, as_population
from evolora.errors import AdapterError, ProtocolError
from evolora.search import (
    GradientMethod,
    Method,
    PolicyMethod,
    from_checkpoint,
    make_method,
    methods,
    to_checkpoint,
)
from evolora.search.coordinates import random_directions

TEMPLATE = matrices((6, 10), (8, 5), (6, 10))
WEIGHTS = random_target(TEMPLATE, 8, 0.1, seed=9)  # of the base, for methods that rescale them
NORMS = {name: row_norms(weight)[:, 0] for name, weight in WEIGHTS.items()}
dense_members, quadratic_rewards, distance = (
    partial(evaluate, weights=WEIGHTS)
    for evaluate in (
        dense_evaluation.dense_members,
        dense_evaluation.quadratic_rewards,
        dense_evaluation.distance,
    )
)
EXAMPLES = [("1", " a"), ("2", " b"), ("3", " c")]

CROWD = {"population": 16, "lambda_m": 5, "spread": 0.02, "factors": "ab", "rank": 4}
DISTINCT = CROWD | {"kappa": 400, "resample_first": True}
RECOMBINED = {"recombine": "step", "factors": "b", "rank": 10, "export": "mean"}

# every registered method must stand here with the settings under which it solves the two targets below
SOLVERS = [
    ("eggroll", {"sigma": 0.02, "lr": 0.4, "population": 16}),
    ("eggroll", {"sigma": 0.02, "lr": 0.4, "rank": 4, "shaping": "centred", "decay_sigma": True}),
    ("eggroll", {"sigma": 0.02, "lr": 0.4, "shaping": "ranks"}),
    ("eggroll", {"sigma": 0.02, "lr": 0.4, "shaping": "zscore", "antithetic": False, "population": 15}),
    ("eggroll", {"sigma": 0.02, "lr": 0.7, "optimiser": "adam"}),
    ("eggroll", {"sigma": 0.02, "lr": 0.1, "optimiser": "momentum", "weight_decay": 1e-3}),
    ("eggroll", {"sigma": 0.05, "lr": 0.8, "space": "factors", "export_rank": 10}),
    ("eggroll", {"sigma": 0.05, "lr": 0.8, "space": "factors", "factors": "ab", "export_rank": 4, "rank": 2}),
    ("decomposed", {"sigma": 0.05, "lr": 0.8, "sigma_magnitude": 0.03, "direction_rank": 10}),
    ("decomposed", {"lr": 0.8, "factors": "ab", "direction_rank": 4, "rank": 2, "shaping": "ranks"}),
    ("decomposed", {"lr": 0.8, "direction_rank": 10, "ablation": "direction_only"}),
    ("decomposed", {"lr": 0.8, "lr_magnitude": 0.5, "ablation": "magnitude_only", "optimiser": "momentum"}),
    ("openai_es", {"sigma": 0.02, "lr": 0.4, "decay": "linear"}),
    ("openai_es", {"sigma": 0.02, "lr": 0.4, "antithetic": True, "shaping": "pair_rms", "population": 8}),
    ("replicator", CROWD | {"kappa": 400, "diffusion": 1e-4}),
    ("replicator", DISTINCT | {"diffusion": 2.5e-4, "antithetic": True, "export": "mean"}),
    ("replicator", DISTINCT | {"diffusion": 6e-4, "kappa": 5, "standardise": True, "anneal": True}),
    ("replicator", DISTINCT | {"diffusion": 1.5e-4, "mutation": "covariance", "memory_noise": 1e-9}),
    ("replicator", DISTINCT | {"diffusion": 7e-5, "mutation_space": "delta"}),
    ("replicator", CROWD | {"kappa": 2, "diffusion": 4e-4, "standardise": True} | RECOMBINED),
    ("mezo", {"sigma": 0.01, "lr": 3e-3}),
    ("mezo", {"sigma": 0.01, "lr": 3e-3, "space": "factors", "rank": 10}),
    ("cma", {"directions": 5}),
    ("cma", {"directions": 2, "population": 8, "export": "best"}),
    ("random_search", {"sigma": 0.03}),
    ("random_search", {"sigma": 0.03, "rank": 2, "population": 24}),
    ("adamw", {"lr": 0.02, "rank": 4}),
    ("adamw", {"lr": 0.02, "rank": 4, "micro_batch": 1, "weight_decay": 1e-3}),
    ("grpo", {"lr": 0.02, "rank": 4}),
    ("grpo", {"lr": 0.02, "rank": 4, "normalise": False, "average": "constant", "kl": 1e-3}),
    ("grpo", {"lr": 0.01, "rank": 4, "epochs": 2, "average": "sequence", "clip_high": 0.3, "samples": 16}),
]
DORA = {"decomposed"}  # what comes out, and what can be the start, has magnitudes
# the rewards' unit matters to these: a scaled reward takes a scaled step
SCALED = {"mezo", "replicator"}
SLOW = {"mezo", "replicator"}
# what moves the members of these whatever they are rewarded, and what they remember acts later
RESTLESS = {"replicator": ("diffusion", "memory_noise")}
PAIRS_ONLY = {"mezo"}  # two members and no more
IDS = [f"{name}-{'-'.join(str(v) for v in options.values())}" for name, options in SOLVERS]
REWARD_ONLY = [(name, options) for name, options in SOLVERS if issubclass(methods()[name], Method)]
REWARD_IDS = [
    label for label, (name, _) in zip(IDS, SOLVERS, strict=True) if issubclass(methods()[name], Method)
]

every_method = pytest.mark.parametrize(("name", "options"), SOLVERS, ids=IDS)
every_crowd = pytest.mark.parametrize(
    ("name", "options"), [(name, options) for name, options in REWARD_ONLY if name not in PAIRS_ONLY]
)
every_search = pytest.mark.parametrize(("name", "options"), REWARD_ONLY, ids=REWARD_IDS)
POLICIES = [(name, options) for name, options in SOLVERS if issubclass(methods()[name], PolicyMethod)]
every_policy = pytest.mark.parametrize(("name", "options"), POLICIES)


def advance(method, state, target, progress):
    if isinstance(method, GradientMethod):
        return method.step(state, QuadraticEngine(target), EXAMPLES, progress)
    if isinstance(method, PolicyMethod):
        return method.step(state, GaussianPolicy(target), progress)
    return method.tell(state, quadratic_rewards(method.ask(state), target), progress)


def begin(method, seed=0, start=None):
    return method.init(TEMPLATE, seed, start, NORMS if method.needs_norms else None)


def given(name, module="layer.0.proj", rank=2):
    """An adapter that can be the start of this method."""
    generator = torch.Generator().manual_seed(rank)
    a, b = torch.randn(rank, 10, generator=generator), torch.randn(6, rank, generator=generator)
    magnitude = torch.rand(6, generator=generator) + 0.5 if name in DORA else None
    return Adapter({module: Factors(a, b, 0.5, magnitude)})


def reachable(method, options, target):
    """What of a target a method can reach: an ablation has directions or norms alone, CMA-ES a subspace."""
    if method.name == "cma":
        return within_span(random_directions(TEMPLATE, method.directions, seed=0), target)
    ablation, kept = options.get("ablation", "none"), {}
    for module, weight in WEIGHTS.items():
        whole = weight + target[module]
        if ablation == "direction_only":
            kept[module] = whole * row_norms(weight) / row_norms(whole) - weight
        if ablation == "magnitude_only":
            kept[module] = weight * row_norms(whole) / row_norms(weight) - weight
    return kept or target


def within_span(coordinates, target):
    """The part of a target that lies along the directions, each a rank-one matrix of its own length."""
    kept = {}
    for module, goal in target.items():
        a, b = coordinates.a[module], coordinates.b[module]
        along = torch.einsum("or,oi,ri->r", b, goal, a) / (b.square().sum(0) * a.square().sum(1))
        kept[module] = (b * along) @ a
    return kept


def run(method, target, steps, seed=0, state=None, total=None):
    state = begin(method, seed) if state is None else state
    for step in range(state.step, steps):
        state, _ = advance(method, state, target, (step + 1) / (total or steps))
    return state


def same(one, two):
    first, second = to_checkpoint(one), to_checkpoint(two)
    return (
        first[1] == second[1]
        and first[0].keys() == second[0].keys()
        and all(torch.equal(value, second[0][key]) for key, value in first[0].items())
    )


def changed(method, before, after):
    old, new = dense_members(method.mean(before)), dense_members(method.mean(after))
    return any(not torch.equal(old[name], new[name]) for name in old)


def random_rewards(method, state, prompts=5, seed=0):
    return torch.randn(method.members(state), prompts, generator=torch.Generator().manual_seed(seed))


def test_every_registered_method_stands_in_the_law_suite():
    assert {name for name, _ in SOLVERS} == set(methods())


@every_method
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(name, options):
    method, target = make_method(name, **options), random_target(TEMPLATE, 1, 0.05)
    assert same(run(method, target, 3), run(method, target, 3))
    assert not same(run(method, target, 3), run(method, target, 3, seed=1))


@every_method
def test_a_checkpoint_at_any_step_continues_bit_for_bit(name, options):
    method, target = make_method(name, **options), random_target(TEMPLATE, 1, 0.05)
    whole = run(method, target, 6)
    for stop in range(6):
        state = from_checkpoint(TEMPLATE, *to_checkpoint(run(method, target, stop, total=6)))
        assert same(run(method, target, 6, state=state), whole)


@every_search
def test_a_checkpoint_between_ask_and_tell_continues_bit_for_bit(name, options):
    method, target = make_method(name, **options), random_target(TEMPLATE, 1, 0.05)
    state = run(method, target, 2, total=3)
    rewards = quadratic_rewards(method.ask(state), target)
    resumed = from_checkpoint(TEMPLATE, *to_checkpoint(state))
    assert resumed.asked
    assert same(method.tell(resumed, rewards, 1.0)[0], method.tell(state, rewards, 1.0)[0])


@every_method
@pytest.mark.parametrize("rank", [1, 3], ids=["rank-1 target", "rank-3 target"])
def test_it_improves_a_matrix_target(name, options, rank):
    method, target = make_method(name, **options), random_target(TEMPLATE, rank, 0.1)
    target = reachable(method, options, target)
    start = distance(method.mean(begin(method)), target)
    steps = 400 if name in SLOW else 150
    assert distance(method.mean(run(method, target, steps)), target) < 0.25 * start


@every_method
def test_the_adapter_is_the_mean_where_its_rank_suffices(name, options):
    method = make_method(name, **options)
    state = run(method, random_target(TEMPLATE, 1, 0.05), 4)
    adapter, mean = method.adapter(state, rank=10), dense_members(method.mean(state))
    assert adapter.specs == TEMPLATE
    assert all((factors.magnitude is not None) == (name in DORA) for factors in adapter.modules.values())
    for module, delta in dense_members(as_population(adapter)).items():
        torch.testing.assert_close(delta, mean[module], atol=1e-6, rtol=1e-5)


@every_method
def test_an_adapter_at_a_lower_rank_states_its_error(name, options):
    method = make_method(name, **options)
    state = run(method, random_target(TEMPLATE, 3, 0.1), 8)
    adapter, mean = method.adapter(state, rank=1), dense_products(method.mean(state))
    lost = sum(
        (factors.delta() - mean[module][0]).square().sum() for module, factors in adapter.modules.items()
    )
    whole = sum(delta.square().sum() for delta in mean.values())
    moves_products = options.get("ablation") != "magnitude_only"
    expected = (lost / whole).sqrt().item() if moves_products else 0.0
    assert adapter.rank == 1
    assert adapter.provenance["truncation_error"] == pytest.approx(expected, rel=1e-3)
    assert (adapter.provenance["truncation_error"] > 0) == moves_products


@every_method
def test_it_starts_at_the_base_or_at_a_given_adapter(name, options):
    method, module = make_method(name, **options), next(iter(TEMPLATE))
    start = given(name, module)
    assert all(not delta.any() for delta in dense_members(method.mean(begin(method))).values())
    mean = dense_members(method.mean(begin(method, start=start)))
    torch.testing.assert_close(mean[module], dense_members(as_population(start))[module])
    assert all(not delta.any() for other, delta in mean.items() if other != module)


@every_method
def test_a_start_that_does_not_fit_is_refused(name, options):
    method, other = make_method(name, **options), next(iter(DORA)) if name not in DORA else "eggroll"
    wrong = {
        "module that is not searched": given(name, "elsewhere"),
        "the base ModuleSpec": given(name, "layer.1.proj"),
        "cannot be the start": given(other),
    }
    for said, start in wrong.items():
        with pytest.raises(AdapterError, match=said):
            begin(method, start=start)


@every_method
def test_a_template_without_modules_is_refused(name, options):
    with pytest.raises(ProtocolError, match="without modules"):
        make_method(name, **options).init({}, 0)


@every_method
def test_a_step_leaves_the_state_before_it_as_it_was(name, options):
    method, target = make_method(name, **options), random_target(TEMPLATE, 1, 0.05)
    state = run(method, target, 2, total=4)
    before = {key: value.clone() for key, value in state.tensors.items()}
    advance(method, state, target, 0.75)
    assert all(torch.equal(value, before[key]) for key, value in state.tensors.items())


@every_method
def test_a_progress_outside_the_budget_is_refused(name, options):
    method, target = make_method(name, **options), random_target(TEMPLATE, 1, 0.05)
    for progress in (-0.1, 1.1, float("nan")):
        with pytest.raises(ProtocolError, match="progress"):
            advance(method, begin(method), target, progress)


@every_search
def test_constant_rewards_change_nothing_and_are_reported(name, options):
    method = make_method(name, **options | dict.fromkeys(RESTLESS.get(name, ()), 0.0))
    state = run(method, random_target(TEMPLATE, 1, 0.05), 2, total=9)
    if name in RESTLESS:
        state = begin(method)
        method.ask(state)
        state, _ = method.tell(state, torch.zeros(method.members(state), 1))
    for level in (0.0, 1.0, 0.1, -1e6):
        prompts = torch.rand(7, generator=torch.Generator().manual_seed(1))
        method.ask(state)
        after, metrics = method.tell(state, (level + prompts).expand(method.members(state), 7), 0.5)
        assert metrics["no_spread"] == 1
        assert metrics["update_norm"] == 0
        assert not changed(method, state, after)
        assert after.step == state.step + 1


@every_crowd
def test_a_member_without_values_counts_as_absent_not_as_zero(name, options):
    method = make_method(name, **options)
    state = begin(method)
    rewards = random_rewards(method, state) - 10  # so that a silent zero would be the best of all
    rewards[4:6] = 50.0
    outcomes = []
    for absent in (float("nan"), float("inf"), float("-inf")):
        rewards[4:6] = absent
        method.ask(state)
        after, metrics = method.tell(state, rewards)
        assert metrics["failed"] == 2
        assert changed(method, state, after)
        outcomes.append(after)
    assert same(outcomes[0], outcomes[1])
    assert same(outcomes[0], outcomes[2])
    assert all(bool(value.isfinite().all()) for value in outcomes[0].tensors.values())
    rewards[4:6] = 0.0
    method.ask(state)
    assert not same(method.tell(state, rewards)[0], outcomes[0])


@every_search
def test_single_missing_values_are_survived_and_counted(name, options):
    method = make_method(name, **options)
    state = begin(method)
    rewards = random_rewards(method, state)
    members = method.members(state)
    gone = {(0, 1), (3 % members, 4), (7 % members, 0)}
    for member, prompt in gone:
        rewards[member, prompt] = float("nan")
    rewards[:, 2] = float("nan")
    method.ask(state)
    after, metrics = method.tell(state, rewards)
    assert metrics["failed"] == 0
    assert metrics["missing"] == len(gone) + members
    assert changed(method, state, after)
    assert all(bool(value.isfinite().all()) for value in after.tensors.values())


@every_search
def test_rewards_that_are_all_missing_change_nothing(name, options):
    method = make_method(name, **options)
    state = run(method, random_target(TEMPLATE, 1, 0.05), 2, total=9)
    method.ask(state)
    after, metrics = method.tell(state, torch.full((method.members(state), 3), float("nan")))
    assert not changed(method, state, after)
    assert metrics["no_spread"] == 1
    assert metrics["failed"] == method.members(state)
    assert np.isnan(metrics["reward_mean"])


@every_search
def test_sigma_zero_gives_identical_members_and_no_step(name, options):
    noise = ("sigma", "diffusion", "spread")
    still = {option: 0.0 for option in methods()[name].model_fields if option.startswith(noise)}
    method = make_method(name, **options | still)
    state = begin(method, start=given(name))
    for delta in dense_members(method.ask(state)).values():
        assert all(torch.equal(delta[0], other) for other in delta)
    after, _ = method.tell(state, random_rewards(method, state))
    shrink = 1 - options.get("lr", 0.0) * options.get("weight_decay", 0.0)
    old, new = dense_members(method.mean(state)), dense_members(method.mean(after))
    for module, delta in old.items():
        torch.testing.assert_close(new[module], delta * shrink, rtol=1e-6, atol=0)


@every_search
def test_calls_out_of_order_are_refused_by_name(name, options):
    method = make_method(name, **options)
    state = begin(method)
    rewards = random_rewards(method, state)
    with pytest.raises(ProtocolError, match="tell before ask"):
        method.tell(state, rewards)
    method.ask(state)
    following, _ = method.tell(state, rewards)
    with pytest.raises(ProtocolError, match="told already"):
        method.tell(state, rewards)
    with pytest.raises(ProtocolError, match="tell before ask"):
        method.tell(following, rewards)


@every_search
def test_rewards_of_a_wrong_shape_are_refused_and_may_be_told_again(name, options):
    method = make_method(name, **options)
    state = begin(method)
    members = method.members(state)
    method.ask(state)
    for shape in [
        (members,),
        (members - 1, 3),
        (members + 2, 3),
        (members, 0),
        (3, members),
        (members, 3, 1),
    ]:
        with pytest.raises(ProtocolError, match=f"members.*\\[{members}, P\\]"):
            method.tell(state, torch.zeros(shape))
    assert method.tell(state, random_rewards(method, state))[0].step == 1


@every_search
def test_a_state_of_other_options_is_refused_by_name(name, options):
    other = matrices((3, 3)) if len(TEMPLATE) != 1 else TEMPLATE
    state = make_method(name, **options).init(other, 0, norms={"layer.0.proj": torch.ones(3)})
    foreign = type(state)(TEMPLATE, 0, tensors=state.tensors, numbers=state.numbers)
    with pytest.raises(ProtocolError, match="the state holds no tensor"):
        dense_members(make_method(name, **options).ask(foreign))


@every_search
def test_a_block_of_all_members_equals_blocks_of_one_bit_for_bit(name, options):
    method = make_method(name, **options)
    population = method.ask(run(method, random_target(TEMPLATE, 1, 0.05), 2, total=5))
    members = len(population)
    whole = dense_members(population)
    for order in ([[i] for i in range(members)], [[-1, 0, 3]], [[2, 3, 4, 5], [1, 2]]):
        for some in ([i % members for i in part] for part in order):
            for module, delta in dense_members(population, some).items():
                assert torch.equal(delta, whole[module][some])


@every_search
def test_selected_members_compute_what_they_compute_in_the_population(name, options):
    method = make_method(name, **options)
    population = method.ask(begin(method))
    whole = dense_members(population)
    some = [5 % len(population), 2 % len(population)]
    for module, delta in dense_members(population.select(some)).items():
        assert torch.equal(delta, whole[module][some])


@every_search
def test_blocks_keep_the_promised_shapes(name, options):
    method = make_method(name, **options)
    population = method.ask(begin(method))
    assert len(population) == method.members(begin(method)) == len(set(population.ids))
    assert len(population.parents) == len(population)
    members = list(range(0, len(population) - len(population) % population.group))
    for module, stack in population.block(members).items():
        spec = TEMPLATE[module]
        dense = population.ranks[module] == DENSE
        assert dense == (stack.a is None)
        assert stack.b.shape[1:] == (spec.d_out, spec.d_in if dense else population.ranks[module])
        if stack.a is not None:
            assert stack.a.shape == (len(stack.b), population.ranks[module], spec.d_in)
            assert stack.a.dtype == torch.float32
        assert len(members) % len(stack.b) == 0
        assert stack.b.dtype == torch.float32
        assert (stack.magnitude is not None) == (name in DORA)
        assert stack.magnitude is None or stack.magnitude.shape == (len(members), spec.d_out)
        assert stack.coefficient is None or stack.coefficient.shape == (len(members),)
        assert stack.kind == spec.kind


@every_search
def test_asking_twice_gives_the_same_population(name, options):
    method = make_method(name, **options)
    state = begin(method)
    one, two = dense_members(method.ask(state)), dense_members(method.ask(state))
    assert all(torch.equal(one[module], two[module]) for module in one)


@every_search
def test_the_level_and_the_unit_of_the_rewards_change_no_step(name, options):
    method = make_method(name, **options)
    state = begin(method)
    rewards = random_rewards(method, state)
    scaled = name in SCALED and not options.get("standardise")
    outcomes = []
    for told in (rewards, rewards * (1 if scaled else 8) + 4):
        method.ask(state)
        outcomes.append(dense_members(method.mean(method.tell(state, told)[0])))
    for module in TEMPLATE:
        torch.testing.assert_close(outcomes[0][module], outcomes[1][module], rtol=1e-4, atol=1e-6)


@every_search
def test_the_journal_gets_what_the_contract_names(name, options):
    method = make_method(name, **options)
    state = begin(method)
    rewards = random_rewards(method, state)
    method.ask(state)
    _, metrics = method.tell(state, rewards)
    means = rewards.mean(dim=1)
    assert metrics["reward_mean"] == pytest.approx(means.mean().item(), abs=1e-6)
    assert metrics["reward_best"] == pytest.approx(means.max().item(), abs=1e-6)
    assert metrics["reward_std"] == pytest.approx(means.std(correction=0).item(), abs=1e-6)
    assert metrics["update_norm"] > 0
    assert metrics["delta_norm"] > 0
    assert all(isinstance(value, float) for value in metrics.values())


def policy_step(name, options, judge, steps=2):
    method, target = make_method(name, **options), random_target(TEMPLATE, 1, 0.05)
    state = run(method, target, steps, total=9)
    return method, state, *method.step(state, GaussianPolicy(target, judge=judge), 0.5)


@every_policy
@pytest.mark.parametrize("level", [0.0, 1.0, 0.1, -1e6])
def test_a_policy_is_not_moved_by_constant_rewards(name, options, level):
    prompts = torch.rand(4, 1, generator=torch.Generator().manual_seed(1))
    method, state, after, metrics = policy_step(name, options, lambda r: (level + prompts).expand_as(r))
    assert metrics["no_spread"] == 1
    assert metrics["update_norm"] == 0
    assert not changed(method, state, after)
    assert after.step == state.step + 1


@every_policy
def test_completions_without_a_value_count_as_absent_not_as_zero(name, options):
    def without(value):
        def judge(rewards):
            rewards = rewards.clone()
            rewards[0, 1], rewards[2, 3:] = value, value
            return rewards

        return judge

    outcomes = []
    for value in (float("nan"), float("inf"), float("-inf"), 0.0):
        method, state, after, metrics = policy_step(name, options, without(value))
        assert metrics["missing"] == (1 + method.samples - 3) * (value != 0)
        assert metrics["failed"] == 0
        assert changed(method, state, after)
        assert all(bool(tensor.isfinite().all()) for tensor in after.tensors.values())
        outcomes.append(after)
    assert same(outcomes[0], outcomes[1])
    assert same(outcomes[0], outcomes[2])
    assert not same(outcomes[0], outcomes[3])


@every_policy
def test_a_policy_survives_rewards_that_are_all_missing(name, options):
    method, state, after, metrics = policy_step(name, options, lambda rewards: rewards * float("nan"))
    assert not changed(method, state, after)
    assert metrics["no_spread"] == 1
    assert metrics["failed"] == method.samples
    assert np.isnan(metrics["reward_mean"])


@every_policy
def test_a_policy_ignores_the_level_of_each_prompts_rewards(name, options):
    level = torch.tensor([[0.0], [8.0], [-4.0], [2.0]])
    outcomes = [policy_step(name, options, judge)[2] for judge in (lambda r: r, lambda r: r + level)]
    for key, value in outcomes[0].tensors.items():
        torch.testing.assert_close(outcomes[1].tensors[key], value, rtol=1e-3, atol=1e-5)


@every_policy
def test_a_policys_journal_gets_what_the_contract_names(name, options):
    seen = []
    judge = lambda rewards: seen.append(rewards) or rewards
    _, _, _, metrics = policy_step(name, options, judge)
    means = seen[0].mean(0)
    assert metrics["reward_mean"] == pytest.approx(means.mean().item(), abs=1e-5)
    assert metrics["reward_best"] == pytest.approx(means.max().item(), abs=1e-5)
    assert metrics["reward_std"] == pytest.approx(means.std(correction=0).item(), abs=1e-5)
    assert metrics["completion_length"] == len(TEMPLATE)
    assert 0 < metrics["lr"] <= options["lr"]
    for norm in ("update_norm", "delta_norm", "grad_norm"):
        assert metrics[norm] > 0
    assert metrics["not_finite"] == metrics["no_spread"] == 0
    assert all(isinstance(value, float) for value in metrics.values())
