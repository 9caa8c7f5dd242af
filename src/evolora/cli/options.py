"""Options that several verbs share, with one wording."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Every random choice follows from it.")]
Model = Annotated[
    str, typer.Option("--model", help="The base: smollm2-135m, a Hub id, a folder or a GGUF file.")
]
Dtype = Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1 or mps.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads.")]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", min=1, help="Tokens in one forward pass: bounds the memory.")
]
Trust = Annotated[bool, typer.Option("--trust-remote-code", help="Let a Hub model run its own Python code.")]
Size = Annotated[int | None, typer.Option(min=1, help="Prompts of this split to use, as the run did.")]
Folder = Annotated[Path, typer.Option("--out", help="The run's folder.")]
