"""One pass through the model: where members fan out, and where logits are computed.

Both are done by hooks on the model's own parts, so the model's own forward (its masks, positions, soft caps)
is what runs: at the lowest adapted layer each prompt's row is repeated for every member, and the output head
sees the wanted positions only, in one contiguous block (a strided slice costs it 10 to 300 times as much on a
CPU).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evolora.engine.structure import Path, accepts, agree
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
        """Logits at some positions, or the output head's input everywhere.

        Args:
            ids: ``[P, T]``.
            positions: flat indices into ``[P, T]``, M of them, or None.
            arguments: further arguments of the model; tensors have one row a prompt, as ``ids`` has.

        Returns:
            Logits ``[members * M, V]``, or without positions ``[rows, T, d]``.
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
        if accepts(model, "use_cache"):
            arguments.setdefault("use_cache", False)
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
        return logits.reshape(len(flat), -1)


class _FanOut:
    """Repeats every batched argument of a layer, once per tensor and pass."""

    def __init__(self, members: int, prompts: int, batched: Mapping[Path, int]) -> None:
        self.members, self.prompts, self.batched = members, prompts, batched
        self._made: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        wide = tuple(self._widen(value, (index,)) for index, value in enumerate(args))
        return wide, {key: self._widen(value, (key,)) for key, value in kwargs.items()}

    def _widen(self, value: Any, path: Path) -> Any:
        import torch

        if isinstance(value, torch.Tensor):
            if value.ndim == 0 or value.shape[0] != self.prompts * self.batched.get(path, 0):
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


def parts_exactly(base: Base) -> bool:
    """Tries whether rows that part after the first layer become what rows that part at once become.

    Some models carry more from layer to layer than what the layers are called with (a residual around the
    whole stack, a mask made before the batch grew); they run without the reuse of a frozen prefix.
    """
    import torch

    structure, members, prompts, width = base.structure, 2, 2, 4
    if not structure.in_order or base.depth < 2:
        return False
    tokens = base.model.get_input_embeddings().num_embeddings
    ids = torch.linspace(tokens // 8, tokens - 1, prompts * width).long().view(prompts, width).to(base.device)
    mask = torch.ones_like(ids)
    mask[0, :1] = 0
    masked = {"attention_mask": mask}
    if accepts(base.model, "position_ids"):
        masked["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.inference_mode():
        for arguments in ({}, masked):
            at_once = Forward(base, members, 0)(ids, None, **arguments)
            try:
                later = Forward(base, members, 1)(ids, None, **arguments)
            except (RuntimeError, ValueError, IndexError):  # shapes that do not fit
                return False
            if later.shape != at_once.shape:
                return False
            # what stands at padding is nobody's
            there = mask.repeat(members, 1).bool() if arguments else torch.ones_like(at_once[..., 0]).bool()
            if not agree(at_once[there], later[there]):
                return False
    return True
