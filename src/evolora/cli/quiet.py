"""Keeps the libraries' warnings and progress bars off stderr, unless EVOLORA_DEBUG is set."""

from __future__ import annotations

import logging
import os
import warnings

from evolora.cli.failures import debug

_SILENT = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_VERBOSITY": "error",
    "TQDM_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def quiet_libraries() -> None:
    """Call it before transformers and huggingface_hub are imported: they read the environment then."""
    if debug():
        return
    for name, value in _SILENT.items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")
    for name in ("transformers", "huggingface_hub", "peft", "torch"):
        logging.getLogger(name).setLevel(logging.ERROR)
