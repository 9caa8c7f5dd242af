"""The tensor file of an adapter folder: its header without its values, and its values on demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evolora.errors import AdapterError

if TYPE_CHECKING:
    from torch import Tensor

SAFETENSORS, PICKLE = "adapter_model.safetensors", "adapter_model.bin"
LFS_START = b"version https://git-lfs"
_FLOATS = {"F16", "BF16", "F32", "F64"}
_TORCH_NAMES = {"float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64"}
_AGAIN = "fetch or save the adapter again"


@dataclass(frozen=True)
class Entry:
    """One tensor as the header has it: its shape, and safetensors' name of its dtype (``F32``, ``BF16``)."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class WeightsFile:
    """The header of ``adapter_model.safetensors`` (or of ``.bin``, where only that exists).

    Attributes:
        path: the file.
        entries: tensor name to its shape and dtype; no value has been read.
        size: the file's length in bytes.
    """

    path: Path
    entries: Mapping[str, Entry]
    size: int

    def read(self, names: Mapping[str, str]) -> dict[str, Tensor]:
        """Reads tensors as float32 copies that do not depend on the file any more.

        Args:
            names: a label of the caller's to the tensor's name in the file.

        Returns:
            The same labels to float32 tensors.

        Raises:
            AdapterError: a tensor holds NaN or infinity (or overflows float32), or the file cannot be read.
        """
        import torch

        tensors = {}
        for label, name, stored in self._stored(names):
            tensor = stored.to(torch.float32, copy=True).contiguous()
            if not torch.isfinite(tensor).all():
                bad = "NaN" if tensor.isnan().any() else "infinite values"
                raise AdapterError(
                    f"{name} holds {bad}", where=self.path, mend="the training diverged; use another one"
                )
            tensors[label] = tensor
        return tensors

    def _stored(self, names: Mapping[str, str]) -> list[tuple[str, str, Tensor]]:
        if self.path.name == PICKLE:
            tensors = _unpickle(self.path, "cpu")
            return [(label, name, tensors[name]) for label, name in names.items()]
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, framework="pt") as file:
                return [(label, name, file.get_tensor(name)) for label, name in names.items()]
        except (SafetensorError, OSError) as error:
            raise AdapterError(f"cannot be read ({error})", where=self.path, mend=_AGAIN) from error


def open_weights(folder: Path) -> WeightsFile:
    """Reads the header of the folder's tensor file; a safetensors file goes before a pickle, as in PEFT.

    Raises:
        AdapterError: no tensor file, a Git-LFS pointer, an empty, truncated or corrupt file, a pickle that
            holds more than tensors, or a tensor that is not floating point.
    """
    path = next((folder / name for name in (SAFETENSORS, PICKLE) if (folder / name).is_file()), None)
    if path is None:
        raise AdapterError(
            f"holds neither {SAFETENSORS} nor {PICKLE}",
            where=folder,
            mend="fetch the whole folder, weights included",
        )
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(len(LFS_START))
    except OSError as error:
        raise AdapterError(
            f"cannot be read ({error.strerror})", where=path, mend="check its permissions"
        ) from error
    if not size:
        raise AdapterError("is empty", where=path, mend=_AGAIN)
    if start == LFS_START:
        raise AdapterError(
            "is a Git-LFS pointer, not the weights", where=path, mend="run 'git lfs pull' in its folder"
        )
    entries = _pickle_header(path) if path.name == PICKLE else _safetensors_header(path)
    for name, entry in entries.items():
        if entry.dtype not in _FLOATS:
            raise AdapterError(
                f"{name} is stored as {entry.dtype}",
                where=path,
                mend="save it as float16, bfloat16 or float32",
            )
    return WeightsFile(path, entries, size)


def _safetensors_header(path: Path) -> dict[str, Entry]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}
            return {name: Entry(tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise AdapterError(f"is truncated or corrupt ({error})", where=path, mend=_AGAIN) from error


def _pickle_header(path: Path) -> dict[str, Entry]:
    return {
        name: Entry(
            tuple(tensor.shape), _TORCH_NAMES.get(dtype := str(tensor.dtype).removeprefix("torch."), dtype)
        )
        for name, tensor in _unpickle(path, "meta").items()
    }


def _unpickle(path: Path, device: str) -> dict[str, Tensor]:
    """The tensors of a ``.bin``; on ``meta`` no value is read. Never runs code from the file."""
    import torch

    try:
        found = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch raises many types here, RuntimeError and UnpicklingError among them
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise AdapterError(
            f"is corrupt, or holds more than tensors ({reason[:80]})",
            where=path,
            mend="save the adapter again as safetensors",
        ) from error
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in found.items()
    ):
        raise AdapterError(
            "is not a table of tensors", where=path, mend="save the adapter again as safetensors"
        )
    return found
