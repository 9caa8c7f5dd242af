"""The tensors of each module in an adapter's file: told apart by name, checked against one another.

PEFT loads with ``strict=False``: what its layers do not expect is dropped, what they lack keeps its initial
value, both in silence. Here every tensor has to have its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from evolora.adapters.adapter import Kind, ModuleSpec
from evolora.adapters.peft_config import CONFIG, Settings
from evolora.adapters.weights_file import WeightsFile
from evolora.errors import AdapterError

PREFIX = "base_model.model."
_PARTS = {
    "lora_A.weight": "a",
    "lora_B.weight": "b",
    "lora_embedding_A": "embedding_a",
    "lora_embedding_B": "embedding_b",
    "lora_magnitude_vector": "magnitude",
    "lora_magnitude_vector.weight": "magnitude",
    "base_layer.weight": "base",
}
_FILE_NAMES = {part: name for name, part in _PARTS.items()}
_KEY = re.compile(rf"{re.escape(PREFIX)}(?P<module>.+?)\.(?P<part>{'|'.join(map(re.escape, _PARTS))})")


def by_module(weights: WeightsFile) -> dict[str, dict[str, str]]:
    """The names of each module's tensors, by part.

    The parts are ``a``, ``b``, ``embedding_a``, ``embedding_b``, ``magnitude`` and ``base`` (a copy of the
    base's own weight, which PEFT stores beside the factors of an embedding).

    Raises:
        AdapterError: a tensor that is none of these, or one part twice.
    """
    modules: dict[str, dict[str, str]] = {}
    for key in sorted(weights.entries):
        match = _KEY.fullmatch(key)
        if match is None:
            raise AdapterError(
                f"unexpected tensor {key}: {_explain(key)}", where=weights.path, mend="remove it, or merge it"
            )
        part = _PARTS[match["part"]]
        parts = modules.setdefault(match["module"], {})
        if part in parts:
            raise AdapterError(
                f"{key} and {parts[part]} say the same thing", where=weights.path, mend="remove one"
            )
        parts[part] = key
    return modules


def _explain(key: str) -> str:
    """Why a tensor that is no factor cannot be read, in the words of the PEFT option that made it."""
    if not key.startswith(PREFIX):
        return f"its name does not start with {PREFIX}"
    if key.endswith("lora_B.bias"):
        return "a bias of the low-rank term (lora_bias)"
    if key.endswith(".bias"):
        return "a bias of the base (bias)"
    if "trainable_tokens" in key:
        return "rows of the embedding (trainable_token_indices)"
    if re.search(r"\.lora_(A|B|embedding_A|embedding_B)\.", key):
        return "its name holds an adapter's name, which PEFT's save_pretrained leaves out"
    return "a whole weight of the base (modules_to_save, or a resized vocabulary)"


def module_spec(
    module: str, parts: Mapping[str, str], weights: WeightsFile, settings: Settings
) -> ModuleSpec:
    """The shape of the module that these tensors fit.

    Raises:
        AdapterError: half a pair of factors, a module that the config does not target, or a rank, magnitude
            or shape that disagrees.
    """

    def refuse(what: str, mend: str) -> AdapterError:
        return AdapterError(f"{module} {what}", where=weights.path, mend=mend)

    embedding = "embedding_a" in parts or "embedding_b" in parts
    kind: Kind = "embedding" if embedding else "linear"
    pair = ("embedding_a", "embedding_b") if embedding else ("a", "b")
    for part in pair:
        if part not in parts:
            raise refuse(
                f"has no {_FILE_NAMES[part]}", "half a pair of factors computes nothing; save it again"
            )
    if embedding and ("a" in parts or "b" in parts):
        raise refuse("has the factors of an embedding and of a linear module", "keep one pair")
    if not settings.targets(module):
        raise refuse(f"is not targeted by {CONFIG}", "PEFT would drop it in silence; correct target_modules")
    a, b = (weights.entries[parts[part]].shape for part in pair)
    if len(a) != 2 or len(b) != 2 or 0 in a + b:
        raise refuse(
            f"has factors of shapes {a} and {b}", "only matrices can be read (no convolutions, no shards)"
        )
    rank = settings.rank(module)
    if (a[0], b[1]) != (rank, rank):
        raise refuse(f"has factors {a} and {b}, {CONFIG} says rank {rank}", "correct r or rank_pattern")
    spec = ModuleSpec(b[0], a[1], kind)
    _check_magnitude(spec, parts, weights, settings.dora, refuse)
    stored = (spec.d_in, spec.d_out) if embedding else (spec.d_out, spec.d_in)
    if "base" in parts and weights.entries[parts["base"]].shape != stored:
        raise refuse(
            f"stores a base weight of shape {weights.entries[parts['base']].shape}", f"{stored} would fit"
        )
    return spec


def _check_magnitude(
    spec: ModuleSpec,
    parts: Mapping[str, str],
    weights: WeightsFile,
    dora: bool,
    refuse: Callable[[str, str], AdapterError],
) -> None:
    if dora and "magnitude" not in parts:
        raise refuse("has no lora_magnitude_vector, which use_dora needs", f"correct use_dora in {CONFIG}")
    if not dora and "magnitude" in parts:
        raise refuse("has a lora_magnitude_vector without use_dora", f"correct use_dora in {CONFIG}")
    if not dora:
        return
    if spec.kind == "embedding":
        raise refuse("uses DoRA on an embedding, which is not supported", "train it without the embedding")
    shape = weights.entries[parts["magnitude"]].shape
    if shape != (spec.d_out,):
        raise refuse(f"has a magnitude of shape {shape} for {spec.d_out} outputs", "save the adapter again")
