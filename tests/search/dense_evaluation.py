"""Brute force: a population as dense deltas, and noise-free rewards of them."""

from types import SimpleNamespace

import numpy as np
import torch

from evolora.adapters import ModuleSpec
from evolora.adapters.noise import normal


def dense_products(population, members=None):
    """Module to B A plus the shared delta of the members [n, d_out, d_in], before a magnitude rescales it."""
    members = range(len(population)) if members is None else members
    dense = {}
    for name, stack in population.block(list(members)).items():
        size = len(members) // len(stack.b)
        delta = stack.b if stack.a is None else stack.b @ stack.a
        delta = delta.repeat_interleave(size, dim=0)
        if stack.coefficient is not None:
            delta = stack.coefficient[:, None, None] * delta
        dense[name] = delta + population.shared[name] if name in population.shared else delta
    return dense


def dense_members(population, members=None, weights=None):
    """Module to the dense deltas [n, d_out, d_in] of the members; DoRA's need the weights of the base."""
    members = list(range(len(population)) if members is None else members)
    dense = dense_products(population, members)
    for name, stack in population.block(members).items():
        if stack.magnitude is not None:
            whole = weights[name] + dense[name]
            dense[name] = stack.magnitude[..., None] / row_norms(whole) * whole - weights[name]
    return dense


def row_norms(weight):
    return weight.double().norm(dim=-1, keepdim=True).float()


def perturbations(population):
    """Module to what each member adds to the shared delta."""
    return {name: delta - population.shared[name] for name, delta in dense_members(population).items()}


def quadratic_rewards(population, target, prompts=3, weights=None):
    """-||W_i - T||^2 of each member, the same on each prompt up to the prompt's own level; [N, prompts]."""
    dense = dense_members(population, weights=weights)
    loss = sum((dense[name] - target[name]).square().sum(dim=(1, 2)) for name in target)
    return -loss[:, None] + torch.arange(prompts)


def distance(population, target, weights=None):
    """The squared distance of a one-member population to the target."""
    return -quadratic_rewards(population, target, 1, weights)[0, 0].item()


def matrices(*shapes):
    return {f"layer.{i}.proj": ModuleSpec(*shape) for i, shape in enumerate(shapes)}


def random_target(template, rank, size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: size
        * (
            torch.randn(spec.d_out, rank, generator=generator)
            @ torch.randn(rank, spec.d_in, generator=generator)
        )
        for name, spec in template.items()
    }


class QuadraticEngine:
    """Its training loss is a quadratic in scale * B A; prompts are weights, answers are ignored."""

    def __init__(self, target):
        self.target, self.calls = target, 0

    def training_loss(self, a, b, scale, prompts, answers, *, stop=None):
        self.calls += 1
        weights = torch.tensor([float(prompt) for prompt in prompts]).mean()
        return weights * sum((scale * b[k] @ a[k] - t).square().sum() for k, t in self.target.items())


class GaussianPolicy:
    """A problem whose completions are matrices drawn around the delta D, one token a module.

    log p(x_m) = -||x_m - D_m||^2 / (2 width^2); the reward of a completion is -||x - T||^2, or what ``judge``
    makes of it.
    """

    def __init__(self, target, width=0.05, prompts=4, judge=lambda rewards: rewards):
        self.target, self.width, self.prompts, self.judge = target, width, prompts, judge
        self.calls = 0

    def rollout(self, policy, samples, step, temperature):
        count, drawn = self.prompts * samples, {}
        for name, goal in self.target.items():
            noise = normal(np.empty((count, *goal.shape), np.float32), seed=0, step=step, tensor=name)
            drawn[name] = policy.modules[name].delta() + self.width * torch.from_numpy(noise)
        loss = sum((drawn[name] - goal).square().sum((1, 2)) for name, goal in self.target.items())
        rewards = self.judge(torch.arange(self.prompts)[:, None] - loss.view(self.prompts, samples))
        return SimpleNamespace(
            rewards=rewards,
            lengths=torch.full((count,), len(self.target)),
            limit=len(self.target),
            drawn=drawn,
        )

    def log_probs(self, a, b, scale, rollouts, rows):
        self.calls += 1
        squares = []
        for name, x in rollouts.drawn.items():
            delta = scale * b[name] @ a[name] if name in a else 0.0
            squares.append((x[rows] - delta).square().sum((1, 2)))
        return -torch.stack(squares, 1) / (2 * self.width**2)
