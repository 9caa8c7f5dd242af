"""Which modules to adapt: names, patterns and layers against what the model has."""

from __future__ import annotations

import re
from collections.abc import Sequence

from evolora.adapters import ModuleSpec
from evolora.engine.structure import Layers, Structure, Targets
from evolora.errors import ConfigError


def select(structure: Structure, targets: Targets, layers: Layers) -> dict[str, ModuleSpec]:
    """The modules that ``targets`` and ``layers`` name.

    Args:
        structure: of the base.
        targets: ``all-linear`` (every linear module inside the layers), ``attention`` or ``mlp`` (the same,
            split by whether the path speaks of attention), a list of last path parts (``["q_proj",
            "v_proj"]``), or a regular expression for the whole path.
        layers: None (all), ``top:8``, ``bottom:4``, ``0-5``, ``3,4,5``, or a list of indices; negative ones
            count from the top.

    Raises:
        ConfigError: nothing matches, or a layer does not exist.
    """
    wanted = None if layers is None else _layers(layers, len(structure.layers))
    inside = {p: s for p, s in structure.specs.items() if 0 <= structure.layer_of[p] < len(structure.layers)}
    linear = {p: s for p, s in inside.items() if s.kind == "linear"}
    if targets == "all-linear":
        found = linear
    elif targets in ("attention", "mlp"):
        found = {p: s for p, s in linear.items() if of_attention(p) == (targets == "attention")}
    elif isinstance(targets, str):
        try:
            found = {p: s for p, s in structure.specs.items() if re.fullmatch(targets, p)}
        except re.error as error:
            raise ConfigError(f"'{targets}' is no regular expression: {error}", where="targets") from None
    else:
        found = {p: s for p, s in structure.specs.items() if any(_called(p, t) for t in targets)}
        missing = [t for t in targets if not any(_called(p, t) for p in found)]
        if missing:
            raise ConfigError(
                f"no module is called {', '.join(missing)}", where="targets", mend=_known(structure)
            )
    if wanted is not None:
        found = {p: s for p, s in found.items() if structure.layer_of[p] in wanted}
    if not found:
        raise ConfigError(
            f"'{targets}' in layers {'all' if layers is None else layers} names no module",
            where="targets",
            mend=_known(structure),
        )
    return found


def of_attention(path: str) -> bool:
    """Whether a module's path speaks of attention."""
    return re.search("attn|attention", path) is not None


def _called(path: str, name: str) -> bool:
    return path == name or path.endswith("." + name)


def _known(structure: Structure) -> str:
    return "this model has " + ", ".join(sorted({p.rsplit(".", 1)[-1] for p in structure.specs}))


def _layers(layers: str | Sequence[int], depth: int) -> set[int]:
    if isinstance(layers, str):
        edge = re.fullmatch(r"(top|bottom):(\d+)", layers)
        span = re.fullmatch(r"(\d+)-(\d+)", layers)
        if edge and 0 < int(edge[2]) <= depth:
            count = int(edge[2])
            return set(range(depth - count, depth) if edge[1] == "top" else range(count))
        if span and int(span[1]) <= int(span[2]) < depth:
            return set(range(int(span[1]), int(span[2]) + 1))
        if not re.fullmatch(r"-?\d+(,-?\d+)*", layers):
            raise ConfigError(
                f"'{layers}' does not select layers of this model",
                where="layers",
                mend=f"it has {depth}: write top:8, bottom:4, 0-5 or 3,4,5",
            )
        layers = [int(index) for index in layers.split(",")]
    bad = [index for index in layers if not -depth <= index < depth]
    if bad:
        raise ConfigError(
            f"there is no layer {bad[0]}", where="layers", mend=f"the model has layers 0 to {depth - 1}"
        )
    return {index % depth for index in layers}
