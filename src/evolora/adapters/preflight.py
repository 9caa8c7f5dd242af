"""Preflight: everything that can be said about an adapter folder without reading a single weight."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Protocol

from evolora.adapters.adapter import ModuleSpec
from evolora.adapters.module_tensors import by_module, module_spec
from evolora.adapters.peft_config import CONFIG, read_config
from evolora.adapters.weights_file import WeightsFile, open_weights
from evolora.errors import AdapterError

RECORD = "evolora.json"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class SpecChecker(Protocol):
    """What is asked of a base: the engine's ``Base`` has it."""

    model: Any

    def check_specs(
        self,
        specs: Mapping[str, ModuleSpec],
        base_name: str | None,
        base_fingerprint: str | None,
        where: object,
        /,
    ) -> None:
        """Raises AdapterError where modules of these shapes do not fit the base."""


@dataclass(frozen=True)
class Preflight:
    """An adapter folder that is sound as far as its config and header tell.

    Attributes:
        path: the folder.
        peft_type: ``LORA``.
        ranks: module to its rank.
        scales: module to what multiplies ``B A`` there.
        specs: module to its shape.
        dora: whether the modules have magnitudes (arXiv 2402.09353).
        base: the base's name as the config records it, if it does.
        name: the adapter's name: recorded, or the folder's.
        provenance: how the adapter was made, from ``evolora.json``; empty for other people's adapters.
        parameters: how many numbers the factors and magnitudes hold.
        size: the length of the tensor file in bytes.
        warnings: what a careful reader should know, one line each.
        weights: the tensor file's header.
        keys: module to the names of its tensors in the file, by part (``a``, ``b``, ``magnitude``).
        copies: module to the name of a copy of the base's own weight that PEFT stored beside its factors.
    """

    path: Path
    peft_type: str
    ranks: Mapping[str, int]
    scales: Mapping[str, float]
    specs: Mapping[str, ModuleSpec]
    dora: bool
    base: str | None
    name: str
    provenance: Mapping[str, Any]
    parameters: int
    size: int
    warnings: tuple[str, ...]
    weights: WeightsFile = field(repr=False)
    keys: Mapping[str, Mapping[str, str]] = field(repr=False)
    copies: Mapping[str, str] = field(repr=False)


def preflight(path: str | Path, base: SpecChecker | None = None) -> Preflight:
    """Checks an adapter folder from its config and the tensor file's header; no weight is read.

    Args:
        path: a PEFT folder (LoRA or DoRA).
        base: the model it is meant for (``engine.Base``): module names, shapes and fingerprint are compared.

    Raises:
        AdapterError: the folder is missing or damaged, uses a property that is not supported exactly, holds a
            tensor that its config does not account for, or does not fit the base.
    """
    folder = adapter_folder(path)
    settings = read_config(folder)
    weights = open_weights(folder)
    modules = by_module(weights)
    if not modules:
        raise AdapterError("holds no tensors", where=weights.path, mend="fetch or save the adapter again")
    specs = {name: module_spec(name, parts, weights, settings) for name, parts in modules.items()}
    copies = {name: parts["base"] for name, parts in modules.items() if "base" in parts}
    keys = {
        name: {part.removeprefix("embedding_"): key for part, key in parts.items() if part != "base"}
        for name, parts in modules.items()
    }
    recorded_name, provenance = _read_record(folder)
    result = Preflight(
        path=folder,
        peft_type="LORA",
        ranks={name: settings.rank(name) for name in specs},
        scales={name: settings.scale(name) for name in specs},
        specs=specs,
        dora=settings.dora,
        base=settings.base,
        name=recorded_name or folder.resolve().name,
        provenance=provenance,
        parameters=sum(prod(weights.entries[key].shape) for parts in keys.values() for key in parts.values()),
        size=weights.size,
        warnings=(*settings.warnings, *(_copy_warning(name) for name in copies)),
        weights=weights,
        keys=keys,
        copies=copies,
    )
    if base is not None:
        base.check_specs(result.specs, result.base, provenance.get("base_fingerprint"), folder)
    return result


def adapter_folder(path: str | Path) -> Path:
    """The folder that a user means by ``path``.

    Raises:
        AdapterError: there is none; a Hub id is told apart from a wrong path.
    """
    folder = Path(path).expanduser()
    try:
        if folder.is_dir():
            return folder
        is_file = folder.exists()
    except OSError as error:
        raise AdapterError(
            f"cannot be read ({error.strerror})", where=folder, mend="check the path"
        ) from error
    if is_file:
        raise AdapterError(
            "is a file, not an adapter folder", where=folder, mend="give the folder that holds it"
        )
    if _HUB_ID.fullmatch(str(path)):
        raise AdapterError(
            "no such folder",
            where=path,
            mend=f"if it is a Hub id, fetch it first: hf download {path} --local-dir FOLDER",
        )
    raise AdapterError("no such folder", where=folder, mend=f"give a folder that holds {CONFIG}")


def _copy_warning(module: str) -> str:
    return f"{module}: a copy of the base's own weight is stored too; it is not loaded"


def _read_record(folder: Path) -> tuple[str | None, dict[str, Any]]:
    path = folder / RECORD
    if not path.is_file():
        return None, {}
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise AdapterError(
            f"is not valid JSON ({error})", where=path, mend="delete it; only the provenance is lost"
        ) from error
    provenance = record.get("provenance", {}) if isinstance(record, dict) else None
    if not isinstance(provenance, dict):
        raise AdapterError(
            "is not a provenance record", where=path, mend="delete it; only the provenance is lost"
        )
    name = record.get("name")
    return (name if isinstance(name, str) else None), provenance
