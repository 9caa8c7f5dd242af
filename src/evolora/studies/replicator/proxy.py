"""The convex proxy of replicator search: 8 dimensions, a noisy reward, 400 evaluations for everybody.

A point z in R^8 is judged on examples (x, y), x ~ N(0, H), y = x . z* + 0.5 noise, by the loss
``(x . z - y)^2 / 2``. H has eigenvalues from 0.1 to 1, evenly in the logarithm, in random directions; z* has
independent unit normal entries; the start is 0. Each seed has its own directions, z* and examples. Reported
is the validation loss without the noise's part, ``(z - z*)^T H (z - z*) / 2``: about 1.5 at the start, 0 at
best.

One evaluation is one point on a minibatch of 8 examples. A population of 16 has 25 steps, Adam (linear decay)
400 gradients of one minibatch each, or 133 where a gradient counts as three evaluations (a forward pass, and
a backward pass of twice its cost). ``plain`` is the published rule on minibatches that all candidates share;
each variant switches one thing; ``own_minibatches`` gives each candidate its own; ``together`` switches on
three that are sensible together. ``openai_es`` is an evolution strategy of 16 members with z-scored rewards.
On this problem mutation in delta space is mutation in factor space, so that variant is not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log10, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from evolora.adapters import Adapter, Factors, ModuleSpec
from evolora.adapters.noise import normal
from evolora.search import Method, make_method

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.adapters import Population

DIMENSIONS, EXAMPLES, NOISE, POPULATION = 8, 8, 0.5, 16
SPECTRUM = (0.1, 1.0)
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "own_minibatches": {},
    "standardise": {"standardise": True},
    "anneal": {"anneal": True},
    "covariance": {"mutation": "covariance"},
    "antithetic": {"antithetic": True},
    "recombine": {"recombine": "step"},
    "resample_first": {"resample_first": True},
    "together": {"standardise": True, "anneal": True, "recombine": "step"},
}
GRADIENTS = {"adam": 1, "adam_three": 3}  # evaluations that a gradient counts as
NAME = "z"


class Proxy:
    """One seed's problem."""

    def __init__(self, seed: int) -> None:
        import torch

        self.seed = seed
        directions = torch.linalg.qr(_draw(seed, "directions", DIMENSIONS, DIMENSIONS)).Q
        low, high = map(log10, SPECTRUM)
        values = torch.logspace(low, high, DIMENSIONS, dtype=torch.float64)
        self.root = directions * values.sqrt()  # root @ root.T is H
        self.best = _draw(seed, "best", DIMENSIONS)

    def examples(self, step: int, count: int) -> tuple[Tensor, Tensor]:
        """``x [count, 8]`` and ``y [count]`` of a step."""
        x = _draw(self.seed, "x", count, DIMENSIONS, step=step) @ self.root.T
        return x, x @ self.best + NOISE * _draw(self.seed, "y", count, step=step)

    def rewards(self, z: Tensor, step: int, own: bool) -> Tensor:
        """``[N, examples]`` of N points; the same examples for all, or each point's own."""
        x, y = self.examples(step, EXAMPLES * (len(z) if own else 1))
        x, y = x.view(-1, EXAMPLES, DIMENSIONS), y.view(-1, EXAMPLES)
        return -((x * z[:, None]).sum(2) - y).square() / 2

    def gradient(self, z: Tensor, step: int) -> Tensor:
        """Of the mean loss on the examples of a step."""
        x, y = self.examples(step, EXAMPLES)
        return x.T @ (x @ z - y) / EXAMPLES

    def loss(self, z: Tensor) -> float:
        """The validation loss of a point."""
        return (self.root.T @ (z - self.best)).square().sum().item() / 2


def solve(arm: str, seed: int, evaluations: int, setting: Mapping[str, float]) -> dict[str, float]:
    """The validation losses that a search ends with.

    Returns:
        ``start``; ``loss`` of the candidate of the largest weight (of the mean, where there is only one);
        ``mean_loss`` of the weighted mean.
    """
    import torch

    proxy = Proxy(seed)
    start = proxy.loss(torch.zeros(DIMENSIONS, dtype=torch.float64))
    if arm in GRADIENTS:
        z = _adam(proxy, evaluations // GRADIENTS[arm], **setting)
        return {"start": start, "loss": proxy.loss(z), "mean_loss": proxy.loss(z)}
    method = _method(arm, setting)
    ones, zeros = torch.ones(1, 1), torch.zeros(DIMENSIONS, 1)
    state = method.init({NAME: ModuleSpec(DIMENSIONS, 1)}, seed, Adapter({NAME: Factors(ones, zeros)}))
    steps = evaluations // POPULATION
    for step in range(steps):
        rewards = proxy.rewards(_points(method.ask(state)), step, arm == "own_minibatches")
        state, _ = method.tell(state, rewards, (step + 1) / steps)
    exports = [method]
    if arm in VARIANTS:
        exports = [method.model_copy(update={"export": export}) for export in ("best", "mean")]
    losses = [proxy.loss(_points(one.mean(state))[0]) for one in exports]
    return {"start": start, "loss": losses[0], "mean_loss": losses[-1]}


def _points(population: Population) -> Tensor:
    """The members' z, ``[N, 8]``: B of a LoRA of rank 1 whose A is 1."""
    stack = population.block(range(len(population)))[NAME]
    z = (stack.b if stack.a is None else stack.b @ stack.a)[..., 0]
    if stack.coefficient is not None:
        z = stack.coefficient[:, None] * z.repeat_interleave(len(stack.coefficient) // len(z), 0)
    return (z + population.shared[NAME][:, 0] if NAME in population.shared else z).double()


def _method(arm: str, setting: Mapping[str, float]) -> Method:
    if arm == "openai_es":
        method = make_method(arm, population=POPULATION, decay="linear", **setting)
    else:
        options = VARIANTS[arm] | dict(setting) | {"spread": sqrt(2 * setting["diffusion"])}
        method = make_method("replicator", population=POPULATION, rank=1, factors="b", **options)
    assert isinstance(method, Method)
    return method


def _adam(proxy: Proxy, steps: int, lr: float, beta2: float) -> Tensor:
    """Adam (arXiv 1412.6980) with linear decay."""
    import torch

    z = torch.zeros(DIMENSIONS, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([z], lr=lr, betas=(0.9, beta2))
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = lr * (1 - step / steps)
        z.grad = proxy.gradient(z.detach(), step)
        optimiser.step()
    return z.detach()


def _draw(seed: int, what: str, *shape: int, step: int = 0) -> Tensor:
    import torch

    noise = normal(np.empty(shape, np.float32), seed=seed, step=step, purpose=f"proxy/{what}")
    return torch.from_numpy(noise).double()
