"""Brute force: a population as dense deltas, and noise-free rewards of them."""

import torch

from evolora.adapters import ModuleSpec


def dense_members(population, members=None):
    """Module to the dense deltas [n, d_out, d_in] of the members, from one block and the shared deltas."""
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


def perturbations(population):
    """Module to what each member adds to the shared delta."""
    return {name: delta - population.shared[name] for name, delta in dense_members(population).items()}


def quadratic_rewards(population, target, prompts=3):
    """-||W_i - T||^2 of each member, the same on each prompt up to the prompt's own level; [N, prompts]."""
    dense = dense_members(population)
    loss = sum((dense[name] - target[name]).square().sum(dim=(1, 2)) for name in target)
    return -loss[:, None] + torch.arange(prompts)


def distance(population, target):
    """The squared distance of a one-member population to the target."""
    return -quadratic_rewards(population, target, prompts=1)[0, 0].item()


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
