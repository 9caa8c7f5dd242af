"""One pass through the model: where members fan out, and where logits are computed.

Both are done by hooks on the model's own parts, so the model's own forward (its masks, positions, soft caps) is what runs:
at the lowest adapted layer each prompt's row is repeated for every member, and the output head sees the wanted positions
only, in one contiguous block (a strided slice costs it 10 to 300 times as much on a CPU).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from evolora.engine.structure import accepts
from evolora.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from evolora.engine.base import Base


class Forward:
    """A pass of P prompts for ``members`` members, whose rows part at layer ``start``.

    Args:
        base: the model.
        members: how many rows each prompt has above ``start``; they stand member by member.
        start: 0 repeats the rows before the first layer.
    """

    def __init__(self, base: Base, members: int, start: int) -> None:
        self.base, self.members, self.start = base, members, start if members > 1 else 0

    def __call__(self, ids: Tensor, positions: Tensor | None, **arguments: Any) -> Tensor:
        """Logits ``[members * M, V]`` at flat ``positions`` of ``[P, T]``, or with None the head's input ``[rows, T, d]``.

        Tensor ``arguments`` have one row a prompt, as ``ids`` has.
        """
        import torch

        model, structure = self.base.model, self.base.structure
        prompts, width = ids.shape
        if self.start == 0 and self.members > 1:
            ids = ids.repeat(self.members, 1)
            for name, value in arguments.items():
                if isinstance(value, torch.Tensor):
                    arguments[name] = value.repeat(self.members, *[1] * (value.ndim - 1))
        seen: list[Tensor] = []
        flat = None
        if positions is not None:
            steps = torch.arange(self.members, device=ids.device) * (prompts * width)
            flat = (positions.to(ids.device)[None, :] + steps[:, None]).reshape(-1)

        def choose(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
            hidden = args[0]
            if flat is None:
                seen.append(hidden)
                return (hidden.reshape(1, -1, hidden.shape[-1])[:, :1],)
            return (hidden.reshape(-1, hidden.shape[-1]).index_select(0, flat)[None],)

        handles = [model.get_submodule(structure.head).register_forward_pre_hook(choose)]
        if self.start > 0:
            fan = _FanOut(self.members, prompts, structure.batched)
            for path in structure.layers[self.start :]:
                layer = model.get_submodule(path)
                handles.append(layer.register_forward_pre_hook(fan, with_kwargs=True))
        arguments.setdefault("use_cache", False)
        if not accepts(model, "use_cache"):
            del arguments["use_cache"]
        try:
            out = model(input_ids=ids, **arguments)
        finally:
            for handle in handles:
                handle.remove()
        if flat is None:
            return seen[0]
        logits: Tensor = out.logits
        if logits.numel() != len(flat) * logits.shape[-1]:
            raise ModelError(
                f"{type(model).__name__} computes logits beside its output embedding", where=self.base.name
            )
        return logits.view(len(flat), -1)


class _FanOut:
    """Repeats every batched argument of a layer, once per tensor and pass."""

    def __init__(self, members: int, prompts: int, batched: frozenset[tuple[str | int, ...]]) -> None:
        self.members, self.prompts, self.batched = members, prompts, batched
        self._made: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        wide = tuple(self._widen(value, (index,)) for index, value in enumerate(args))
        return wide, {key: self._widen(value, (key,)) for key, value in kwargs.items()}

    def _widen(self, value: Any, path: tuple[str | int, ...]) -> Any:
        import torch

        if isinstance(value, torch.Tensor):
            if path not in self.batched or value.shape[0] != self.prompts:
                return value
            known = self._made.get(id(value))
            if known is None or known[0] is not value:
                known = (value, value.repeat(self.members, *[1] * (value.ndim - 1)))
                self._made[id(value)] = known
            return known[1]
        if isinstance(value, tuple | list):
            return type(value)(self._widen(child, (*path, index)) for index, child in enumerate(value))
        if isinstance(value, dict):
            return {key: self._widen(child, (*path, key)) for key, child in value.items()}
        return value
