"""The fields of PEFT's LoRA config: which are read, which cannot matter, and which are refused by name.

A field that stands in none of the lists may have no value but PEFT's default, so a property of a later PEFT
version is refused rather than dropped.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from evolora.errors import AdapterError

_READ = {
    "r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "target_modules",
    "exclude_modules", "layers_to_transform", "layers_pattern", "fan_in_fan_out",
}  # fmt: skip
_HARMLESS = {
    "peft_type", "task_type", "inference_mode", "auto_mapping", "peft_version", "base_model_name_or_path",
    "revision", "lora_dropout", "runtime_config", "megatron_core", "qalora_group_size", "eva_config",
    "corda_config", "loftq_config", "lora_ga_config", "init_lora_weights",
}  # fmt: skip
_HARMLESS_INIT = (True, False, None, "gaussian", "orthogonal", "eva")
_WHY = {
    "bias": "it trains biases of the base",
    "lora_bias": "it adds a bias to the low-rank term",
    "modules_to_save": "it replaces whole modules of the base",
    "trainable_token_indices": "it replaces rows of the embedding",
    "target_parameters": "it adapts bare parameters, not modules",
    "layer_replication": "it changes the number of layers",
    "use_qalora": "it pools the input of each module",
    "alora_invocation_tokens": "it acts only after certain tokens",
    "arrow_config": "it routes between adapters",
    "ensure_weight_tying": "it ties the adapters of two modules",
    "megatron_config": "it needs Megatron layers",
    "kasa_config": "it changes the base's weights",
    "monteclora_config": "it samples its weights",
}
_MEND = "train it without, or merge it into the base with PEFT and adapt that model"


def check_fields(raw: dict[str, Any], path: Path) -> tuple[str, ...]:
    """Refuses fields that change the function and are not read; returns notes on unknown ones that are off.

    Raises:
        AdapterError: names the field.
    """
    from peft import LoraConfig

    blank = LoraConfig()
    defaults = {field.name: getattr(blank, field.name) for field in fields(blank)}
    init = raw.get("init_lora_weights")
    if not any(init is known or (isinstance(init, str) and init == known) for known in _HARMLESS_INIT):
        raise AdapterError(
            f"init_lora_weights = {init!r} changes the base's weights when it is loaded",
            where=path,
            mend="save it from PEFT with path_initial_model_for_weight_conversion",
        )
    notes = []
    for name in sorted(raw.keys() - _READ - _HARMLESS):
        value = raw[name]
        off = value is None or value is False or value in ([], {}, "")
        if name in defaults and (value == defaults[name] or (off and not defaults[name])):
            continue
        if name not in defaults and off:
            notes.append(f"{name} is unknown to this version of PEFT; it is switched off here")
            continue
        why = _WHY.get(
            name,
            "it may change the function" if name in defaults else "this version of PEFT has no such field",
        )
        raise AdapterError(f"{name} = {_short(value)} is not supported: {why}", where=path, mend=_MEND)
    return tuple(notes)


def check_values(raw: dict[str, Any], path: Path) -> None:
    """Refuses values of a wrong type, with which PEFT would fail (or not) much later.

    Raises:
        AdapterError: names the field.
    """

    def number(value: Any) -> bool:
        try:
            return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        except OverflowError:  # a whole number that no float holds
            return False

    def positive(value: Any) -> bool:
        return isinstance(value, int) and number(value) and value > 0

    def table(value: Any, each: Any) -> bool:
        return isinstance(value, dict) and all(each(entry) for entry in value.values())

    def names(value: Any) -> bool:
        return isinstance(value, str) or (
            isinstance(value, list) and all(isinstance(entry, str) for entry in value)
        )

    def indices(value: Any) -> bool:
        return all(isinstance(entry, int) and not isinstance(entry, bool) for entry in _as_list(value))

    rules: dict[str, tuple[Any, str]] = {
        "r": (positive, "a positive whole number"),
        "lora_alpha": (number, "a finite number"),
        "rank_pattern": (lambda v: v is None or table(v, positive), "a table of positive whole numbers"),
        "alpha_pattern": (lambda v: v is None or table(v, number), "a table of finite numbers"),
        "use_rslora": (lambda v: isinstance(v, bool), "true or false"),
        "use_dora": (lambda v: isinstance(v, bool), "true or false"),
        "exclude_modules": (lambda v: v is None or names(v), "a pattern or a list of names"),
        "layers_to_transform": (lambda v: v is None or indices(v), "a layer index or a list of them"),
        "layers_pattern": (lambda v: v is None or names(v), "a name or a list of names"),
    }
    for name, (fits, wanted) in rules.items():
        if name in raw and not fits(raw[name]):
            raise AdapterError(
                f"{name} = {_short(raw[name])} is not {wanted}", where=path, mend="correct the config"
            )
    targets = raw.get("target_modules")
    if not targets or targets == "all-linear" or not names(targets):
        raise AdapterError(
            f"target_modules = {_short(targets)} leaves the modules to be guessed from the base",
            where=path,
            mend="list the adapted modules there, as PEFT's save_pretrained does",
        )
    for pattern in _patterns(raw):
        try:
            re.compile(pattern)
        except re.error as error:
            raise AdapterError(
                f"{pattern!r} is not a regular expression ({error})", where=path, mend="correct it"
            ) from error


def _patterns(raw: dict[str, Any]) -> list[str]:
    single = [raw[name] for name in ("target_modules", "exclude_modules") if isinstance(raw.get(name), str)]
    return [
        *single,
        *_as_list(raw.get("layers_pattern") or []),
        *(raw.get("rank_pattern") or {}),
        *(raw.get("alpha_pattern") or {}),
    ]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
