"""The loss against the published one, written out in plain torch, and what must have no gradient."""

from math import log
from types import SimpleNamespace

import pytest
import torch
from dense_evaluation import GaussianPolicy, matrices, random_target

from evolora.errors import ConfigError
from evolora.search import GRPO

TEMPLATE = matrices((6, 10), (8, 5))
PROMPTS, GROUP, LIMIT = 3, 4, 9
LENGTHS = torch.tensor([5, 1, 7, 3, 2, 6, 4, 5, 7, 1, 3, 2])
MASK = torch.arange(7) < LENGTHS[:, None]
GENERATOR = torch.Generator().manual_seed(0)
REWARDS = torch.randn(PROMPTS, GROUP, generator=GENERATOR)


def table(spread, mean=-2.0):
    return (mean + spread * torch.randn(MASK.shape, generator=GENERATOR)) * MASK


OLD, BASE = table(0.5), table(0.5)
NEW = OLD + table(0.3, mean=0.0)


class Scripted:
    """Log-probabilities from tables, one table an epoch; their gradients are kept."""

    def __init__(self, *epochs, rewards=REWARDS, base=BASE):
        self.epochs, self.rewards, self.base = epochs, rewards, base
        self.given = []

    def rollout(self, policy, samples, step, temperature):
        assert samples == GROUP
        return SimpleNamespace(rewards=self.rewards, lengths=LENGTHS, limit=LIMIT)

    def log_probs(self, a, b, scale, rollouts, rows):
        wide = int(LENGTHS[rows].max())
        if not a:
            assert not torch.is_grad_enabled()
            return self.base[rows, :wide]
        done = sum(rows == other for other, _ in self.given)  # how often these rows were asked for
        found = self.epochs[done][rows, :wide].clone().requires_grad_()
        self.given.append((rows, found))
        return found

    def gradient(self, epoch):
        whole, seen = torch.zeros(MASK.shape), {}
        for rows, found in self.given:
            seen[tuple(rows)] = seen.get(tuple(rows), -1) + 1
            if seen[tuple(rows)] == epoch:
                whole[rows, : found.shape[1]] = found.grad
        return whole


def published(log_probs, old, base, rewards, options, lengths=LENGTHS):
    """Loss, divergence and clipped share as TRL's documentation writes them for its loss types."""
    advantages = (rewards - rewards.mean(1, keepdim=True)).flatten()
    if options.get("normalise", True):
        advantages = advantages / (rewards.std(1, keepdim=True) + 1e-4).expand_as(rewards).flatten()
    advantages = advantages[:, None]
    mask = torch.arange(log_probs.shape[1]) < lengths[:, None]
    low, high = options.get("clip", 0.2), options.get("clip_high", options.get("clip", 0.2))
    ratio = torch.exp(log_probs - old)
    loss = -torch.min(ratio * advantages, torch.clamp(ratio, 1 - low, 1 + high) * advantages)
    divergence = torch.exp(base - log_probs) - (base - log_probs) - 1
    loss = (loss + options.get("kl", 0.0) * divergence) * mask
    kind = options.get("average", "token")
    if kind == "sequence":
        loss = (loss.sum(1) / mask.sum(1)).mean()
    elif kind == "token":
        loss = loss.sum() / mask.sum()
    else:
        loss = loss.sum() / (len(mask) * LIMIT)
    clipped = ((ratio < 1 - low) & (advantages < 0)) | ((ratio > 1 + high) & (advantages > 0))
    return loss, (divergence * mask).sum() / mask.sum(), (clipped & mask).sum() / mask.sum()


def with_gradient(values, *rest, **more):
    values = values.clone().requires_grad_()
    loss, divergence, clipped = published(values, *rest, **more)
    loss.backward()
    return loss.item(), divergence.item(), clipped.item(), values.grad


def step_of(problem, **options):
    method = GRPO(samples=GROUP, **options)
    state = method.init(TEMPLATE, 0)
    return state, *method.step(state, problem, 0.5)


@pytest.mark.parametrize("average", ["sequence", "token", "constant"])
@pytest.mark.parametrize(
    "options",
    [{}, {"kl": 0.3, "clip": 0.1, "clip_high": 0.28}, {"normalise": False, "kl": 0.04, "micro_batch": 0}],
    ids=["plain", "divergence", "not normalised"],
)
@pytest.mark.parametrize("micro_batch", [5, 16])
def test_the_loss_and_its_gradient_are_the_published_ones(average, options, micro_batch):
    options = {"micro_batch": micro_batch, **options, "average": average}
    problem = Scripted(OLD, NEW)
    _, _, metrics = step_of(problem, epochs=2, **options)
    wanted = [with_gradient(now, OLD, BASE, REWARDS, options) for now in (OLD, NEW)]
    for epoch, (_, _, _, gradient) in enumerate(wanted):
        torch.testing.assert_close(problem.gradient(epoch), gradient, rtol=1e-5, atol=1e-7)
    loss, divergence, clipped = (sum(w[i] for w in wanted) / 2 for i in range(3))
    assert wanted[1][2] > 0.1
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert metrics["clip_fraction"] == pytest.approx(clipped)
    assert metrics["kl"] == pytest.approx(divergence if options.get("kl") else float("nan"), nan_ok=True)


def test_nothing_is_clipped_in_the_first_epoch_however_small_the_clip():
    problem = Scripted(OLD)
    _, _, metrics = step_of(problem, clip=1e-9)
    advantages = (REWARDS - REWARDS.mean(1, keepdim=True)) / (REWARDS.std(1, keepdim=True) + 1e-4)
    policy_gradient = -(advantages.flatten()[:, None] * MASK) / MASK.sum()
    torch.testing.assert_close(problem.gradient(0), policy_gradient)
    assert metrics["clip_fraction"] == 0


def test_clipping_takes_the_gradient_where_the_ratio_has_gone_far_enough_and_nowhere_else():
    better = (REWARDS > REWARDS.mean(1, keepdim=True)).flatten()[:, None].expand(MASK.shape)[MASK]
    every = torch.ones_like(better)
    moving = {0.5: better, 0.79: better, 0.81: every, 1.25: every, 1.29: every, 1.31: ~better, 1.5: ~better}
    for ratio, expected in moving.items():
        problem = Scripted(OLD, OLD + log(ratio) * MASK)
        step_of(problem, epochs=2, clip=0.2, clip_high=0.3)
        assert torch.equal((problem.gradient(1) != 0)[MASK], expected)


def test_completions_without_a_value_are_as_if_they_had_not_been_sampled():
    rewards = REWARDS.clone()
    rewards[:, 1] = torch.tensor([float("nan"), float("inf"), float("-inf")])
    problem = Scripted(OLD, NEW, rewards=rewards)
    kept = [row for row in range(PROMPTS * GROUP) if row % GROUP != 1]
    for average in ("sequence", "token", "constant"):
        problem.given.clear()
        options = {"kl": 0.1, "average": average}
        step_of(problem, epochs=2, **options)
        *_, wanted = with_gradient(
            NEW[kept], OLD[kept], BASE[kept], rewards[:, [0, 2, 3]], options, lengths=LENGTHS[kept]
        )
        torch.testing.assert_close(problem.gradient(1)[kept], wanted, rtol=1e-5, atol=1e-7)
        assert not problem.gradient(1)[1::GROUP].any()


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_a_group_with_one_value_contributes_nothing(kl):
    rewards = REWARDS.clone()
    rewards[1, 1:] = float("nan")
    problem = Scripted(OLD, rewards=rewards)
    step_of(problem, kl=kl)
    others = [row for row in range(PROMPTS * GROUP) if row // GROUP != 1]
    *_, wanted = with_gradient(
        OLD[others], OLD[others], BASE[others], rewards[[0, 2]], {"kl": kl}, lengths=LENGTHS[others]
    )
    torch.testing.assert_close(problem.gradient(0)[others], wanted, rtol=1e-5, atol=1e-7)
    assert not problem.gradient(0)[GROUP : 2 * GROUP].any()


def test_completions_of_a_group_without_spread_are_not_run_unless_a_divergence_holds_them():
    rewards = REWARDS.clone()
    rewards[1] = 0.1
    for kl, expected in ((0.0, PROMPTS * GROUP - GROUP), (0.1, PROMPTS * GROUP)):
        problem = Scripted(OLD, rewards=rewards)
        step_of(problem, kl=kl)
        assert sum(len(rows) for rows, _ in problem.given) == expected
        *_, wanted = with_gradient(OLD, OLD, BASE, rewards, {"kl": kl})
        torch.testing.assert_close(problem.gradient(0), wanted, rtol=1e-5, atol=1e-7)


class Words:
    """A policy of three words whose logits are the delta's rows at fixed features."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.features = torch.randn(PROMPTS * GROUP, 7, 10, generator=generator)
        self.words = torch.randint(6, (PROMPTS * GROUP, 7), generator=generator)

    def rollout(self, policy, samples, step, temperature):
        return SimpleNamespace(rewards=REWARDS, lengths=LENGTHS, limit=LIMIT)

    def log_probs(self, a, b, scale, rollouts, rows):
        wide, name = int(LENGTHS[rows].max()), "layer.0.proj"
        delta = scale * b[name] @ a[name] if a else torch.zeros(6, 10)
        logits = self.features[rows, :wide] @ delta.T
        found = logits.log_softmax(-1).gather(2, self.words[rows, :wide, None])[..., 0]
        return found * MASK[rows, :wide]


def test_it_agrees_with_a_plain_torch_loop():
    method = GRPO(samples=GROUP, lr=0.05, epochs=3, kl=0.2, rank=3, warmup=0.0, weight_decay=0.1)
    start, steps, problem = method.init({"layer.0.proj": TEMPLATE["layer.0.proj"]}, 5), 4, Words()
    state, clipped = start, 0.0
    for step in range(steps):
        state, metrics = method.step(state, problem, (step + 1) / steps)
        clipped += metrics["clip_fraction"]
    assert clipped > 0
    factors = method.adapter(start).modules["layer.0.proj"]
    a, b = torch.nn.Parameter(factors.a.clone()), torch.nn.Parameter(factors.b.clone())
    optimiser = torch.optim.AdamW([a, b], lr=method.lr, betas=(0.9, 0.99), weight_decay=0.1)
    now = lambda: problem.log_probs({"layer.0.proj": a}, {"layer.0.proj": b}, 2.0, None, range(12))
    base = problem.log_probs({}, {}, 2.0, None, range(12))
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = method.lr * (1 - (step + 0.5) / steps)
        old = now().detach()
        for _ in range(method.epochs):
            optimiser.zero_grad()
            published(now(), old, base, REWARDS, {"kl": 0.2})[0].backward()
            torch.nn.utils.clip_grad_norm_([a, b], method.largest_gradient)
            optimiser.step()
    found = method.adapter(state).modules["layer.0.proj"]
    torch.testing.assert_close(found.a, a.detach(), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found.b, b.detach(), rtol=1e-3, atol=1e-5)


def test_micro_batches_add_up_to_the_whole_batch():
    target, outcomes, calls = random_target(TEMPLATE, 2, 0.1), [], []
    for size in (0, 5, 1):
        problem = GaussianPolicy(target, prompts=2)
        outcomes.append(step_of(problem, micro_batch=size, kl=1e-3)[1:])
        calls.append(problem.calls)
    assert calls == [2, 4, 16]  # with as many for the base
    for after, metrics in outcomes[1:]:
        assert metrics == pytest.approx(outcomes[0][1], rel=1e-3, abs=1e-5)
        for key, value in outcomes[0][0].tensors.items():
            torch.testing.assert_close(after.tensors[key], value, rtol=1e-2, atol=1e-6)


def test_a_loss_that_is_not_finite_updates_nothing_and_is_counted():
    for epochs in ((OLD + float("nan"),), (OLD, OLD + float("inf") * MASK)):
        state, after, metrics = step_of(Scripted(*epochs), epochs=len(epochs), kl=0.1)
        assert metrics["not_finite"] == 1
        assert metrics["update_norm"] == 0
        assert after.step == 1
        assert after.tensors.keys() == state.tensors.keys()
        assert all(torch.equal(after.tensors[key], value) for key, value in state.tensors.items())


def test_each_step_asks_for_samples_of_its_own_at_the_temperature_given():
    asked = []

    class Asked(GaussianPolicy):
        def rollout(self, policy, samples, step, temperature):
            asked.append((samples, step, temperature))
            return super().rollout(policy, samples, step, temperature)

    method, problem = GRPO(samples=5, temperature=0.7), Asked(random_target(TEMPLATE, 1, 0.1))
    state = method.init(TEMPLATE, 0)
    for progress in (0.5, 1.0):
        state, _ = method.step(state, problem, progress)
    assert asked == [(5, 0, 0.7), (5, 1, 0.7)]


@pytest.mark.parametrize(
    "options", [{"samples": 1}, {"temperature": 0.0}, {"clip": 0.0}, {"epochs": 0}, {"average": "group"}]
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ConfigError, match=f"grpo: {next(iter(options))}"):
        GRPO(**options)
