"""`evolora demo`: the main job on the bundled model, with everything chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from evolora.cli.adapt import carry_out
from evolora.cli.options import Json, Quiet, Seed
from evolora.cli.output import clean_stdout, emit
from evolora.cli.progress import make_progress
from evolora.cli.quiet import quiet_libraries
from evolora.cli.story import tell


def command(
    seed: Seed = 0,
    out: Annotated[Path, typer.Option("--out", help="The run's folder.")] = Path("runs/demo"),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what stands in the folder.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Teach the bundled model something from a 0/1 reward, and show whether it worked.

    Example: [bold]evolora demo --seed 1 --out runs/demo-1[/bold]

    No gradient is used: the search sees only whether each answer is exactly right. It leaves an adapter
    folder that PEFT loads, and a report page.
    """
    quiet_libraries()
    with clean_stdout():
        from evolora.job import demo_config
        from evolora.tasks import load_task

        config = demo_config(seed, out).model_copy(update={"overwrite": overwrite})
        progress = make_progress(quiet=quiet)
        task = load_task(config.task, seed=config.seed, stop=config.stop, **config.sizes())
        progress.note(f"{config.model} learns {task.name!r}: {task.description}")
        example = task.train[0]
        progress.note(
            f"for example {example.prompt!r} -> {example.answer!r}; reward 1 if exactly right, else 0"
        )
        result = carry_out(config, progress)
    emit(result) if json else tell(result, config)
