"""Second models for the peers, over the base's own weights, with the repair that every peer is given.

The output head of a strided slice (``hidden[:, -1:]``, which is what ``generate`` and ``logits_to_keep=1``
hand it) is 10 to 300 times as slow on a CPU as that of a contiguous block, whatever the method. So all models
here get a hook that makes the last position contiguous: without it each of the ratios would be that trap's,
not ours.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from evolora.engine import Base


def twin(base: Base, *, own_weights: bool = False) -> Any:
    """Another model object of the same class, config and weights, which a peer may change.

    Args:
        base: stays as it is.
        own_weights: copy the weights too; otherwise they are the base's, and nobody may write to them.
    """
    shared = {} if own_weights else {id(p): p for p in base.model.parameters()}
    model = copy.deepcopy(base.model, shared)
    model.get_submodule(base.structure.head).register_forward_pre_hook(_last_position)
    return model


def _last_position(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor]:
    return (args[0][:, -1:].contiguous(),)


def last(model: Any, ids: Tensor, **arguments: Any) -> Tensor:
    """``[rows, V]`` logits at the end of each row."""
    logits: Tensor = model(input_ids=ids, use_cache=False, **arguments).logits
    return logits[:, -1]
