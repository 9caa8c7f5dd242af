"""What people use today to run several adapters, each in the form that is fastest for it.

In half precision PEFT by default keeps adapters in float32 and casts activations back and forth; here they
have the base's dtype (``autocast_adapter_dtype=False``), which is faster. All adapters are in memory before
the clock starts.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from evolora.adapters import Adapter
from evolora.bench.twin import last, twin

if TYPE_CHECKING:
    from torch import Tensor, nn

    from evolora.engine import Base


class PeftAdapters:
    """PEFT with N adapters in one model: ``set_adapter`` one by one, or ``adapter_names`` for a mixed batch.

    Args:
        base: the model that the adapters fit.
        adapters: of one rank and one set of modules.
    """

    def __init__(self, base: Base, adapters: Sequence[Adapter]) -> None:
        from peft import get_peft_model

        self.names = [f"m{i}" for i in range(len(adapters))]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about Conv1D, which PEFT adapts to by itself
            self.model = get_peft_model(
                twin(base), _config(adapters[0]), self.names[0], autocast_adapter_dtype=False
            )
            for name in self.names[1:]:
                self.model.add_adapter(name, _config(adapters[0]), autocast_adapter_dtype=False)
        self.layers = {path: self.model.base_model.model.get_submodule(path) for path in adapters[0].modules}
        for name, adapter in zip(self.names, adapters, strict=True):
            copy_in(self.layers, name, weights(base, adapter))
        self.model.eval().requires_grad_(False)

    def loop(self, ids: Tensor, count: int) -> Tensor:
        """``[count, P, V]`` logits of the first members, each selected and run on its rows."""
        import torch

        found = []
        with torch.inference_mode():
            for name in self.names[:count]:
                self.model.set_adapter(name)
                found.append(last(self.model, ids))
        return torch.stack(found)

    def mixed(self, ids: Tensor) -> Tensor:
        """``[N, P, V]`` logits of all members in one batch."""
        import torch

        names = [name for name in self.names for _ in range(len(ids))]
        with torch.inference_mode(), self.unhooked():
            logits = last(self.model, ids.repeat(len(self.names), 1), adapter_names=names)
        return logits.view(len(self.names), len(ids), -1)

    @contextmanager
    def unhooked(self) -> Iterator[None]:
        """Takes off the hooks that a failed mixed batch leaves on PEFT's layers: later passes would fail."""
        try:
            yield
        except BaseException:
            for layer in self.layers.values():
                layer._forward_pre_hooks.clear()
            raise


class CopyLoop:
    """The careful user's loop: one PEFT adapter, each member's weights copied in before its rows are run.

    Args:
        base: the model that the adapters fit.
        adapters: of one rank and one set of modules.
        pairs: adapters 2j and 2j + 1 are one direction with both signs, as in evolution strategies:
        it is copied
            once, and the sign turned in between.
    """

    def __init__(self, base: Base, adapters: Sequence[Adapter], *, pairs: bool) -> None:
        self._peft = PeftAdapters(base, adapters[:1])
        self._members = [weights(base, adapter) for adapter in adapters]
        self._pairs = pairs

    def loop(self, ids: Tensor, count: int) -> Tensor:
        """``[count, P, V]`` logits of the first members."""
        import torch

        found = []
        name = self._peft.names[0]
        with torch.inference_mode():
            for i, member in enumerate(self._members[:count]):
                turned = self._pairs and i % 2 == 1
                if not turned:
                    copy_in(self._peft.layers, name, member)
                for layer in self._peft.layers.values():
                    layer.scaling[name] = -1.0 if turned else 1.0
                found.append(last(self._peft.model, ids))
        return torch.stack(found)


class MergeLoop:
    """No adapter library: ``W + B A`` is written into a second model, run, and made anew from W for the next.

    One ``addmm`` from the kept W restores and adds at once, without the drift of adding and subtracting.
    """

    def __init__(self, base: Base, adapters: Sequence[Adapter]) -> None:
        model = twin(base, own_weights=True)
        self._model = model
        self._modules = [
            (base.model.get_submodule(path).weight, model.get_submodule(path).weight, type(module).__name__)
            for path in adapters[0].modules
            for module in [model.get_submodule(path)]
        ]
        self._members = [weights(base, adapter) for adapter in adapters]

    def loop(self, ids: Tensor, count: int) -> Tensor:
        """``[count, P, V]`` logits of the first members."""
        import torch

        found = []
        with torch.inference_mode():
            for member in self._members[:count]:
                for (kept, weight, kind), (a, b) in zip(self._modules, member.values(), strict=True):
                    left, right = (a.T, b.T) if kind == "Conv1D" else (b, a)
                    torch.addmm(kept, left, right, out=weight)
                found.append(last(self._model, ids))
        return torch.stack(found)


def weights(base: Base, adapter: Adapter) -> dict[str, tuple[Tensor, Tensor]]:
    """A and B of each module, on the base's device and in its dtype, B with the scale."""
    return {
        path: (f.a.to(base.device, base.dtype), (f.b * f.scale).to(base.device, base.dtype))
        for path, f in adapter.modules.items()
    }


def copy_in(layers: dict[str, nn.Module], name: str, member: dict[str, tuple[Tensor, Tensor]]) -> None:
    """Writes a member's factors into PEFT's layers."""
    import torch

    with torch.no_grad():
        for path, (a, b) in member.items():
            layer: Any = layers[path]
            layer.lora_A[name].weight.copy_(a)
            layer.lora_B[name].weight.copy_(b)


def _config(adapter: Adapter) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=adapter.rank, lora_alpha=adapter.rank, target_modules=list(adapter.modules), init_lora_weights=False
    )
