"""Checkpoints that a kill at any moment cannot spoil.

``step-000012.tmp-PID/`` is filled, its manifest (sizes and SHA-256 sums) last, every file and folder fsynced,
then renamed to ``step-000012/``. What bears the final name is complete; what does not is a leftover.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evolora.errors import ProtocolError, RunError
from evolora.runs.atomic import cannot_write, sync_folder, write_synced
from evolora.runs.plain import plain

if TYPE_CHECKING:
    from torch import Tensor

_STATE, _NUMBERS, _MANIFEST = "state.safetensors", "numbers.json", "manifest.json"
_NAME = re.compile(r"step-(\d+)")
_LEFTOVER = re.compile(r"(step-\d+)\.(tmp|old)-(\d+)")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of a search after ``step`` steps.

    Attributes:
        step: how many steps were done.
        tensors: on the CPU, with the dtypes, shapes and bits that were saved.
        numbers: everything else; floats have the bits that were saved, tuples come back as lists.
        passed_over: what was wrong with newer checkpoints, one line each.
    """

    step: int
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]
    passed_over: tuple[str, ...] = ()


def save(
    folder: Path, step: int, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any], *, keep: int = 2
) -> Path:
    """Writes one checkpoint, then removes all later ones and all but the newest ``keep``.

    Args:
        folder: the folder of checkpoints; made when absent.
        step: how many steps were done, >= 0; a checkpoint of the same step is replaced.
        tensors: any device and dtype of safetensors; tensors that share memory are saved apart.
        numbers: str, int, float (NaN and infinities too), bool, None, and lists and dicts of them.
        keep: how many checkpoints stay, >= 1.

    Returns:
        The checkpoint's folder.

    Raises:
        ProtocolError: a negative step, or a value that cannot be saved.
        RunError: it cannot be written; earlier checkpoints stay and nothing else is left behind.
    """
    if step < 0 or keep < 1:
        raise ProtocolError(f"a checkpoint needs step >= 0 and keep >= 1, not {step} and {keep}")
    text = json.dumps(plain(numbers, nonfinite=True, where="numbers"), indent=1)
    final = folder / f"step-{step:06d}"
    beside = folder / f"{final.name}.tmp-{os.getpid()}"
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        write_synced(beside / _NUMBERS, text.encode())
        _write_tensors(beside / _STATE, tensors)
        files = {name: _fingerprint(beside / name) for name in (_STATE, _NUMBERS)}
        write_synced(beside / _MANIFEST, json.dumps({"step": step, "files": files}, indent=1).encode())
        sync_folder(beside)
        _put(beside, final)
    except OSError as error:
        raise cannot_write(final, error) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    newest_first = sorted(_checkpoints(folder), reverse=True)
    later = [
        path for other, path in newest_first if other > step
    ]  # damaged, or latest() had returned one of them
    earlier = [path for other, path in newest_first if other <= step][keep:]
    for path in later + earlier:
        shutil.rmtree(path, ignore_errors=True)
    return final


def latest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint whose checksums hold (it names the damaged ones passed over); None without any.

    Also removes what killed writers left. Call it only as the one writer of the run (see ``Lock``).

    Raises:
        RunError: there are checkpoints, and all are damaged.
    """
    _clear_leftovers(folder)
    damaged: list[str] = []
    for _, path in sorted(_checkpoints(folder), reverse=True):
        try:
            return replace(_load(path), passed_over=tuple(damaged))
        except (OSError, ValueError, KeyError, TypeError) as error:
            damaged.append(f"{path.name} is damaged ({error})")
    if damaged:
        raise RunError(
            f"no checkpoint can be read: {damaged[0]}", where=folder, mend="start anew with --overwrite"
        )
    return None


def _checkpoints(folder: Path) -> list[tuple[int, Path]]:
    if not folder.is_dir():
        return []
    named = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return [(int(match[1]), path) for match, path in named if match and path.is_dir()]


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    ready: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        storage = own.untyped_storage().data_ptr()
        ready[name] = own.clone() if storage in storages else own  # safetensors refuses shared memory
        storages.add(storage)
    try:
        save_file(ready, path)
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise ProtocolError(f"the tensors cannot be saved ({error})", where="checkpoint") from error
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def _fingerprint(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _put(beside: Path, final: Path) -> None:
    """Renames ``beside`` to ``final``; a complete checkpoint exists under some name at every moment."""
    old = beside.with_name(f"{final.name}.old-{os.getpid()}")
    if final.exists():
        os.rename(final, old)
    os.rename(beside, final)
    sync_folder(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def _load(path: Path) -> Checkpoint:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    manifest = json.loads((path / _MANIFEST).read_bytes())
    for name in (_STATE, _NUMBERS):
        if _fingerprint(path / name) != manifest["files"][name]:
            raise ValueError(f"{name} does not match its checksum")
    try:
        mapped = load_file(path / _STATE)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    tensors = {
        name: tensor.clone() for name, tensor in mapped.items()
    }  # outlive the file, which is pruned later
    return Checkpoint(int(manifest["step"]), tensors, json.loads((path / _NUMBERS).read_bytes()))


def _clear_leftovers(folder: Path) -> None:
    for path in list(folder.iterdir()) if folder.is_dir() else []:
        match = _LEFTOVER.fullmatch(path.name)
        if not match or _lives(int(match[3])):
            continue
        final = folder / match[1]
        if match[2] == "old" and not final.exists():  # killed between the two renames of _put
            os.rename(path, final)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _lives(pid: int) -> bool:
    if pid == os.getpid():  # a container's processes get the same ids each time: ours is not writing now
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
