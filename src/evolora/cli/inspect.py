"""`evolora inspect`: what an adapter folder holds, without a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evolora.cli.options import Json
from evolora.cli.output import clean_stdout, console, emit, plain, table
from evolora.cli.quiet import quiet_libraries

if TYPE_CHECKING:
    from evolora.adapters import Adapter, Factors


def command(
    adapter: Annotated[Path, typer.Argument(help="An adapter folder.", show_default=False)],
    json: Json = False,
) -> None:
    """Look into an adapter folder: modules, ranks, norms, provenance; no model is needed.

    Example: [bold]evolora inspect runs/demo/adapter[/bold]
    """
    quiet_libraries()
    with clean_stdout():
        from evolora.adapters import Adapter
        from evolora.adapters.preflight import preflight

        checked = preflight(adapter)
        found = describe(Adapter.load(adapter), adapter) | {"warnings": list(checked.warnings)}
    emit(found) if json else _show(found)


def describe(adapter: Adapter, path: Path) -> dict[str, Any]:
    """The adapter in plain values: totals, groups of modules of one kind, every module, provenance."""
    from evolora.adapters.geometry import norm

    modules = {name: module(factors) for name, factors in adapter.modules.items()}
    return {
        "path": str(path),
        "base": adapter.base,
        "parameters": adapter.parameters,
        "rank": adapter.rank,
        "norm": float(norm(adapter)),
        "groups": groups(modules),
        "modules": modules,
        "provenance": plain(adapter.provenance),
    }


def module(factors: Factors) -> dict[str, Any]:
    """One module: shape, rank, norm of the delta, largest singular value, effective rank, DoRA or not."""
    from evolora.adapters.geometry import effective_rank, spectrum

    values = spectrum(factors)
    return {
        "shape": [factors.spec.d_out, factors.spec.d_in],
        "kind": factors.kind,
        "rank": factors.rank,
        "norm": float(values.norm()),
        "largest": float(values.max()),
        "effective_rank": effective_rank(values),
        "dora": factors.magnitude is not None,
    }


def groups(modules: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Modules that differ only in their layer's number, as one row each; norms add in squares."""
    kinds: dict[str, list[str]] = {}
    for name in modules:
        kinds.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    rows = []
    for kind, names in kinds.items():
        members = [modules[name] for name in names]
        rows.append(
            {
                "modules": kind,
                "count": len(names),
                "layers": _layers(names),
                "shape": members[0]["shape"],
                "rank": [min(m["rank"] for m in members), max(m["rank"] for m in members)],
                "norm": sum(m["norm"] ** 2 for m in members) ** 0.5,
                "largest": max(m["largest"] for m in members),
                "effective_rank": sum(m["effective_rank"] for m in members) / len(members),
                "dora": any(m["dora"] for m in members),
            }
        )
    return rows


def _layers(names: Sequence[str]) -> list[int]:
    numbers = (re.search(r"\d+", name) for name in names)
    return sorted({int(match.group()) for match in numbers if match})


def _range(values: Sequence[int]) -> str:
    if not values:
        return ""
    low, high = min(values), max(values)
    dense = len(set(values)) == high - low + 1
    return str(low) if low == high else f"{low}-{high}" if dense else ",".join(map(str, values))


def _show(found: Mapping[str, Any]) -> None:
    say = console().print
    say(found["path"], style="bold")
    base, parameters = found["base"] or "not recorded", found["parameters"]
    say(f"base {base}; {parameters:,} parameters; norm of the delta {found['norm']:.4g}")
    rows = [
        (
            group["modules"],
            _range(group["layers"]),
            "x".join(map(str, group["shape"])),
            "-".join(map(str, sorted(set(group["rank"])))),
            f"{group['norm']:.4g}",
            f"{group['largest']:.4g}",
            f"{group['effective_rank']:.1f}",
            "DoRA" if group["dora"] else "",
        )
        for group in found["groups"]
    ]
    numbers = ("rank", "norm", "largest s", "effective rank")
    table(
        "Modules",
        ("modules", "layers", "shape", "rank", "norm", "largest s", "effective rank", ""),
        rows,
        right=numbers,
    )
    for warning in found["warnings"]:
        say(f"note: {warning}")
    if found["provenance"]:
        table("Provenance", ("", "value"), list(found["provenance"].items()))
