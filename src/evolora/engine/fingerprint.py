"""A base's fingerprint: the same in float32 and bfloat16, another for any other weights."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

_SAMPLES = 256


def fingerprint(model: nn.Module) -> str:
    """Hashes names, shapes and up to 256 evenly spaced values of every parameter; 16 hex digits.

    Values count as bfloat16, so a float32 model and its bfloat16 copy are one model; so is a float16 copy of
    weights that were bfloat16 to begin with. Quantised weights are sampled as stored: they have a fingerprint
    of their own. Takes milliseconds for any size.
    """
    import torch

    digest = hashlib.blake2b(digest_size=8)
    for name, parameter in sorted(model.named_parameters()):
        flat = parameter.detach().reshape(-1)
        stride = max(1, flat.numel() // _SAMPLES)
        values = flat[::stride][:_SAMPLES].cpu()
        if values.is_floating_point():
            values = values.to(torch.bfloat16).view(torch.int16)
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        digest.update(values.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
