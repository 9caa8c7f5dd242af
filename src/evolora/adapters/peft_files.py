"""PEFT folders: read exactly, written in one canonical form.

Canonical means: every scale folded into B (so alpha = r everywhere and no rslora), the targets listed by
their full paths, lower ranks by pattern, float32 safetensors; ``evolora.json`` tells how it was made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evolora.adapters.adapter import Adapter, Factors
from evolora.adapters.folders import new_folder
from evolora.adapters.module_tensors import PREFIX
from evolora.adapters.peft_config import CONFIG
from evolora.adapters.preflight import RECORD, Preflight, SpecChecker, preflight
from evolora.adapters.weights_file import PICKLE, SAFETENSORS
from evolora.errors import AdapterError, ProtocolError
from evolora.runs.atomic import write_synced
from evolora.runs.plain import plain
from evolora.version import __version__

if TYPE_CHECKING:
    from torch import Tensor

_KNOWN = frozenset({CONFIG, SAFETENSORS, PICKLE, RECORD, "README.md", ".gitattributes"})


def read_adapter(path: str | Path, base: SpecChecker | None = None) -> Adapter:
    """Reads a PEFT folder (LoRA or DoRA) after a preflight; half precision becomes float32.

    Args:
        path: the folder.
        base: the model it is meant for (``engine.Base``), to check the adapter against. Only with it can a
            copy of a base weight, which PEFT stores beside an embedding's factors, be compared to the base's.

    Raises:
        AdapterError: what ``preflight`` raises, a tensor that holds NaN or infinity, or a stored copy of a
            base weight that differs from the base's.
    """
    found = preflight(path, base)
    names = {f"{module}/{part}": key for module, parts in found.keys.items() for part, key in parts.items()}
    values = found.weights.read(names)
    if base is not None:
        _compare_copies(found, base)
    modules = {
        module: Factors(
            values[f"{module}/a"],
            values[f"{module}/b"],
            found.scales[module],
            values.get(f"{module}/magnitude"),
            spec.kind,
        )
        for module, spec in found.specs.items()
    }
    return Adapter(modules, found.base, found.name, found.provenance)


def write_adapter(adapter: Adapter, path: str | Path, *, overwrite: bool = False) -> Path:
    """Writes a canonical PEFT folder beside ``path`` and renames it into place; returns ``path``.

    Args:
        adapter: its modules must be all LoRA or all DoRA (PEFT has one switch for the whole adapter).
        path: the folder to make; parents are made too.
        overwrite: replace an adapter folder that stands there. Anything else is never removed.

    Raises:
        AdapterError: the adapter is empty, not finite or cannot be expressed in PEFT's format; something
            stands at ``path``; or it cannot be written.
    """
    from safetensors.torch import save

    target = Path(path).expanduser()
    files = {
        SAFETENSORS: save(_tensors(adapter), metadata={"format": "pt"}),
        CONFIG: _json(_config(adapter)),
        RECORD: _json(_record(adapter)),
    }
    with new_folder(target, overwrite=overwrite, marker=CONFIG, known=_KNOWN) as beside:
        for name, data in files.items():
            write_synced(beside / name, data)
    return target


def _compare_copies(found: Preflight, base: SpecChecker) -> None:
    """PEFT would load such a copy over the base's weight; nothing is lost where they are equal."""
    import torch

    for module, copy in found.weights.read(found.copies).items():
        weight = getattr(base.model.get_submodule(module), "weight", None)
        if weight is None or not torch.allclose(copy, weight.detach().float().cpu(), rtol=2**-7, atol=1e-5):
            raise AdapterError(
                f"carries its own weight of {module}, which differs from the base's",
                where=found.path,
                mend="only adapters of an unchanged base can be read: save that base, and name it",
            )


def _tensors(adapter: Adapter) -> dict[str, Tensor]:
    """The tensors of the file, scales folded into B; PEFT knows no rank 0, so it becomes one row of zeros."""
    import torch

    if not adapter.modules:
        raise AdapterError(
            "adapts no modules", where=adapter.name, mend="an adapter needs at least one to be saved"
        )
    with_dora = [name for name, factors in adapter.modules.items() if factors.magnitude is not None]
    if with_dora and len(with_dora) < len(adapter.modules):
        plain = next(name for name in adapter.modules if name not in with_dora)
        raise AdapterError(
            f"{with_dora[0]} has a DoRA magnitude, {plain} has none",
            where=adapter.name,
            mend="PEFT's format has one use_dora for all modules: save them as two adapters",
        )
    tensors = {}
    for name, factors in sorted(adapter.modules.items()):
        embedding = factors.kind == "embedding"
        if embedding and factors.magnitude is not None:
            raise AdapterError(
                f"{name} uses DoRA on an embedding", where=adapter.name, mend="leave that module out"
            )
        a, b = factors.a.detach().float(), factors.b.detach().float() * factors.scale
        if factors.rank == 0:
            a, b = a.new_zeros(1, a.shape[1]), b.new_zeros(b.shape[0], 1)
        parts = (
            {"lora_embedding_A": a, "lora_embedding_B": b}
            if embedding
            else {"lora_A.weight": a, "lora_B.weight": b}
        )
        if factors.magnitude is not None:
            parts["lora_magnitude_vector"] = factors.magnitude.detach().float()
        for part, tensor in parts.items():
            if not torch.isfinite(tensor).all():
                raise AdapterError(
                    f"{name}.{part} is not finite",
                    where=adapter.name,
                    mend="the search diverged; lower its step",
                )
            # safetensors refuses tensors that share memory
            tensors[f"{PREFIX}{name}.{part}"] = tensor.cpu().clone(memory_format=torch.contiguous_format)
    return tensors


def _config(adapter: Adapter) -> dict[str, Any]:
    ranks = {name: max(1, factors.rank) for name, factors in adapter.modules.items()}
    largest = max(ranks.values())
    # PEFT searches its patterns in turn for every module: one pattern a rank keeps that short
    lower = {
        _exactly([name for name in sorted(ranks) if ranks[name] == rank]): rank
        for rank in sorted({*ranks.values()} - {largest})
    }
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": adapter.base,
        "inference_mode": True,
        "r": largest,
        "lora_alpha": largest,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": any(factors.magnitude is not None for factors in adapter.modules.values()),
        "target_modules": sorted(ranks),
        "rank_pattern": lower,
        "alpha_pattern": lower,
    }


def _exactly(names: list[str]) -> str:
    """A pattern that matches these paths alone, and no longer path that ends like one of them."""
    return f"^(?:{'|'.join(re.escape(name) for name in names)})"


def _record(adapter: Adapter) -> dict[str, Any]:
    try:
        provenance = plain(adapter.provenance, where="provenance")
    except ProtocolError as error:
        raise AdapterError(f"cannot be saved: {error}", where=adapter.name) from error
    return {"evolora": __version__, "name": adapter.name, "provenance": provenance}


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
