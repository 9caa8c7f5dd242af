"""What a run was made with: versions, machine, command, commit."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("evolora", "torch", "transformers", "peft", "numpy", "safetensors", "scipy")


def collect() -> dict[str, Any]:
    """The facts that a reader of the run needs to judge or repeat it; loads no library and no device.

    Returns:
        ``started`` (UTC, ISO 8601), ``argv``, ``python``, ``platform``, ``versions`` (None: not installed),
        ``cpu`` (model, cores, usable cores, threads), ``memory_bytes``, ``gpus`` (names; empty unless torch
        is loaded and sees some) and ``git`` (commit, and whether tracked files differ; None: no repository).
    """
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in PACKAGES},
        "cpu": {
            "model": _cpu_model(),
            "cores": os.cpu_count(),
            "usable": _usable_cores(),
            "threads": _threads(),
        },
        "memory_bytes": _memory(),
        "gpus": _gpus(),
        "git": _commit(Path.cwd()),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _usable_cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _threads() -> int | None:
    torch = sys.modules.get("torch")
    if torch is not None:
        return int(torch.get_num_threads())
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdecimal() else None


def _memory() -> int | None:
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _gpus() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _commit(folder: Path) -> dict[str, Any] | None:
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": None if changed is None else bool(changed)}


def _git(folder: Path, *arguments: str) -> str | None:
    """The output of one git command, or None when git is absent, slow, or finds no repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()
