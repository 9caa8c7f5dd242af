"""PEFT's ``adapter_config.json``: what changes the function is understood exactly, or refused by name.

PEFT's own ``LoraConfig`` parses the file, and PEFT's own matching says which modules it targets, with which
rank and alpha. ``peft_fields`` judges the fields.
"""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from evolora.adapters.peft_fields import check_fields, check_values
from evolora.adapters.weights_file import LFS_START
from evolora.errors import AdapterError

CONFIG = "adapter_config.json"
_OTHER_TYPES = {
    "PROMPT_TUNING": "prompt tuning: it learns input vectors, not weight deltas",
    "MULTITASK_PROMPT_TUNING": "prompt tuning: it learns input vectors, not weight deltas",
    "P_TUNING": "prompt tuning: it learns input vectors, not weight deltas",
    "PREFIX_TUNING": "prefix tuning: it learns keys and values, not weight deltas",
    "IA3": "IA3: it rescales activations, it has no low-rank factors",
}
_MLX = ("lora_parameters", "fine_tune_type", "lora_layers")


@dataclass(frozen=True)
class Settings:
    """What a config says about the function.

    Attributes:
        config: PEFT's ``LoraConfig``.
        dora: whether every module has a magnitude (arXiv 2402.09353).
        base: the base's name, if recorded.
        warnings: what was read as switched off without being known.
    """

    config: Any
    dora: bool
    base: str | None
    warnings: tuple[str, ...]

    def targets(self, module: str) -> bool:
        """Whether PEFT would put a LoRA layer on the module of this path."""
        from peft.tuners.tuners_utils import check_target_module_exists

        return bool(check_target_module_exists(self.config, module))

    def rank(self, module: str) -> int:
        """The rank that PEFT gives the module."""
        return int(self._pattern(self.config.rank_pattern, module, self.config.r))

    def scale(self, module: str) -> float:
        """What multiplies ``B A`` there: alpha / r, or alpha / sqrt(r) under rslora (arXiv 2312.03732)."""
        rank = self.rank(module)
        alpha = float(self._pattern(self.config.alpha_pattern, module, self.config.lora_alpha))
        return alpha / (math.sqrt(rank) if self.config.use_rslora else rank)

    @staticmethod
    def _pattern(pattern: dict[str, float], module: str, default: float) -> float:
        from peft.utils.other import get_pattern_key

        return pattern.get(get_pattern_key(list(pattern), module), default)


def read_config(folder: Path) -> Settings:
    """Reads and judges ``adapter_config.json``.

    Raises:
        AdapterError: the file is missing or damaged, is not PEFT's, is not LoRA's, or sets a field that
            changes the function in a way that is not supported exactly (the field is named).
    """
    path = folder / CONFIG
    raw = _load(path)
    _check_kind(raw, path)
    notes = check_fields(raw, path)
    check_values(raw, path)
    return Settings(
        _parse(raw, path), raw.get("use_dora", False), raw.get("base_model_name_or_path") or None, notes
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        model = (path.parent / "config.json").is_file()
        inside = path.parent / "adapter"
        if (inside / CONFIG).is_file():
            raise AdapterError("is a run's folder", where=path.parent, mend=f"give {inside}") from None
        raise AdapterError(
            "is a model, not an adapter" if model else f"holds no {CONFIG}",
            where=path.parent,
            mend="give the folder that PEFT's save_pretrained wrote",
        ) from None
    except OSError as error:
        raise AdapterError(
            f"cannot be read ({error.strerror})", where=path, mend="check its permissions"
        ) from error
    if data.startswith(LFS_START):
        raise AdapterError(
            "is a Git-LFS pointer, not the config", where=path, mend="run 'git lfs pull' in its folder"
        )
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise AdapterError(
            f"is not valid JSON ({error})", where=path, mend="fetch or save the adapter again"
        ) from error
    if not isinstance(raw, dict):
        raise AdapterError("is not a JSON object", where=path, mend="fetch or save the adapter again")
    return raw


def _check_kind(raw: dict[str, Any], path: Path) -> None:
    if "peft_type" not in raw:
        found = [key for key in _MLX if key in raw]
        if found:
            raise AdapterError(
                f"is an MLX config ({found[0]})", where=path, mend="convert the adapter to PEFT's format"
            )
        raise AdapterError(
            "names no peft_type", where=path, mend='add "peft_type": "LORA" if that is what it is'
        )
    kind = raw["peft_type"]
    if kind != "LORA":
        what = _OTHER_TYPES.get(str(kind), f"of peft_type {kind}")
        raise AdapterError(
            f"is {what}", where=path, mend="only LORA (with or without DoRA) can be read exactly"
        )


def _parse(raw: dict[str, Any], path: Path) -> Any:
    from peft import LoraConfig

    known = {field.name for field in fields(LoraConfig)} - {"runtime_config"}
    values = {name: value for name, value in raw.items() if name in known}
    for name in ("rank_pattern", "alpha_pattern"):
        values[name] = values.get(name) or {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about training options that a frozen adapter does not use
            return LoraConfig(**values)
    except (TypeError, ValueError, ImportError, AttributeError) as error:
        raise AdapterError(
            f"PEFT does not accept it ({error})", where=path, mend="correct the config"
        ) from error
