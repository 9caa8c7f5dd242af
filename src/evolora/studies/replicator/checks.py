"""What the replicator's arithmetic must do, measured on whole searches against closed forms.

    mass         the largest |sum w - 1| of a search
    selection    log-odds of two candidates at constant rewards: slope kappa dt (r1 - r2), memory instant
    memory       an exponential average of a constant and of a step: G (1 - exp(-lambda_M n dt))
    diffusion    variance of a mutated coordinate after n steps: 2 D n dt
    resampling   offspring in proportion to the weights; fired exactly where 1 / sum w^2 < N / 3

Source: arXiv 2607.02171.
"""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, Any

from evolora.adapters import Adapter, Factors, ModuleSpec
from evolora.search import Replicator
from evolora.search.replicator_dynamics import LEAST_SHARE, offspring
from evolora.search.replicator_state import unpack

if TYPE_CHECKING:
    from torch import Tensor

    from evolora.search.state import State

KAPPAS, DIFFUSIONS = (0.1, 1.0, 10.0, 100.0), (1e-4, 1e-2, 1.0)
FORGETTING, STEPS, AT_ONCE = 0.3, 40, 60.0  # 1 - exp(-60) is 1 to the last bit
MEMBERS, COORDINATES, MUTATIONS, DRAWS = 16, 12_500, 4, 2_000


def mass(seed: int) -> float:
    """The largest deviation of the weights' sum from 1."""
    rewards = _uniform(seed, STEPS, MEMBERS)
    sums = [state.tensor("log_weights").exp().sum().item() for state, _ in _run(rewards, seed, kappa=30.0)]
    return max(abs(total - 1) for total in sums)


def selection(seed: int) -> float:
    """The largest relative error of the log-odds' slope over a grid of kappa."""
    import torch

    one, two = _uniform(seed, 1, 2)[0].tolist()
    rewards, errors = torch.tensor([[one, two]]).expand(STEPS, 2), []
    for kappa in KAPPAS:
        options: dict[str, Any] = {"population": 2, "lambda_m": AT_ONCE, "diffusion": 0.0}
        *_, (state, _) = _run(rewards, seed, kappa=kappa / 100, **options)
        log_weights = state.tensor("log_weights")
        slope = (log_weights[0] - log_weights[1]).item() / STEPS
        judged = rewards[0].double()  # rewards are told in float32
        wanted = kappa / 100 * (judged[0] - judged[1]).item()
        errors.append(abs(slope / wanted - 1))
    return max(errors)


def memory(seed: int) -> float:
    """The largest relative error against the exponential average of a constant, and of a step half way."""
    import torch

    level = 1 + _uniform(seed, 1, 1).item()
    half = STEPS // 2
    constant = torch.full((STEPS, MEMBERS), level)
    step = torch.cat([torch.zeros(half, MEMBERS), constant[half:]])
    errors = []
    for rewards, began in ((constant, 0), (step, half)):
        states = [state for state, _ in _run(rewards, seed, lambda_m=FORGETTING, diffusion=0.0)]
        for n, state in enumerate(states[began:], 1):
            wanted = rewards[-1, 0].double().item() * (1 - exp(-FORGETTING * n))
            errors.append((state.tensor("memory") / wanted - 1).abs().max().item())
    return max(errors)


def diffusion(seed: int) -> list[float]:
    """The relative error of the variance for each D, from 200,000 coordinates."""
    import torch

    errors = []
    for number, size in enumerate(DIFFUSIONS):
        options: dict[str, Any] = {"kappa": 0.0, "diffusion": size, "spread": 0.0}
        still, own = torch.ones(MUTATIONS + 1, MEMBERS), len(DIFFUSIONS) * seed + number
        *_, (state, _) = _run(still, own, coordinates=COORDINATES, **options)
        moved = unpack(state)[0].b["z"].double()
        errors.append(moved.square().mean().item() / (2 * size * MUTATIONS) - 1)
    return errors


def resampling(seed: int) -> dict[str, Any]:
    """``offspring`` of each candidate and its ``weights``; ``fired``, and ``wrong`` against the rule."""
    import torch

    weights = (3 * _uniform(7, 1, MEMBERS)[0]).double().softmax(0)  # the same for every seed: counts add up
    draws = _uniform(seed, DRAWS, MEMBERS).double()
    counts = torch.stack([torch.bincount(offspring(weights, u), minlength=MEMBERS) for u in draws]).sum(0)
    told = [metrics for _, metrics in _run(_uniform(seed, STEPS, MEMBERS), seed, kappa=10.0)]
    due = [before["ess"] < MEMBERS / LEAST_SHARE for before in told[:-1]]
    fired = [bool(after["resampled"]) for after in told[1:]]
    wrong = sum(a != b for a, b in zip(due, fired, strict=True))
    return {
        "offspring": counts.tolist(),
        "weights": weights.tolist(),
        "wrong": wrong,
        "fired": sum(fired),
    }


def _run(
    rewards: Tensor, seed: int, *, population: int = MEMBERS, coordinates: int = 4, **options: Any
) -> list[tuple[State, dict[str, float]]]:
    """State and metrics after each step of a search whose rewards ``[steps, N]`` are given."""
    import torch

    method = Replicator(population=population, rank=1, factors="b", **options)
    start = Adapter({"z": Factors(torch.ones(1, 1), torch.zeros(coordinates, 1))})
    state, found = method.init({"z": ModuleSpec(coordinates, 1)}, seed, start), []
    for step, row in enumerate(rewards):
        method.ask(state)
        state, metrics = method.tell(state, row[:, None], (step + 1) / len(rewards))
        found.append((state, metrics))
    return found


def _uniform(seed: int, *shape: int) -> Tensor:
    import torch

    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))
