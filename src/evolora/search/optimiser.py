"""Any torch optimiser as a pure function, with its state as plain tensors: exact to save, exact to resume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_PREFIX = "optimiser/"


def descend(
    name: str,
    parameters: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    **settings: Any,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """One step down the gradients.

    Args:
        name: a class of ``torch.optim``, such as ``AdamW``.
        parameters: what to move; not changed.
        gradients: one for each parameter.
        tensors: where the state of the steps before stands, under ``optimiser/PARAMETER/ENTRY``. Other names
            are ignored; without any the optimiser starts fresh.
        settings: the arguments of the class: ``lr``, ``betas``, ...

    Returns:
        The new parameters, and the optimiser's new state under the same names.
    """
    import torch

    moved = {key: value.detach().clone() for key, value in parameters.items()}
    for key, value in moved.items():
        value.grad = gradients[key]
    optimiser = getattr(torch.optim, name)(list(moved.values()), foreach=False, **settings)
    for entry, value in tensors.items():
        key, _, slot = entry.removeprefix(_PREFIX).rpartition("/")
        if entry.startswith(_PREFIX) and key in moved:
            optimiser.state[moved[key]][slot] = value.clone()
    optimiser.step()
    memory = {
        f"{_PREFIX}{key}/{slot}": value
        for key, parameter in moved.items()
        for slot, value in optimiser.state[parameter].items()
        if torch.is_tensor(value)
    }
    for value in moved.values():
        value.grad = None
    return moved, memory
