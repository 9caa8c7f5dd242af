"""The verbs of the command, their lazy loading, and what happens when one fails."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from evolora.cli.failures import INTERRUPTED, fail
from evolora.version import __version__

VERBS = {
    "demo": "Teach the bundled model something from a 0/1 reward, and show whether it worked.",
    "adapt": "Adapt a model to one task from a reward.",
    "evaluate": "Measure the base and adapters on a task, per family, with 95 % intervals.",
    "study": "List, run or show experiments: claims first, paired seeds, equal budgets, a verdict.",
    "inspect": "Look into an adapter folder: modules, ranks, norms, provenance; no model is needed.",
    "report": "Build the HTML page of a run or a study again.",
    "bench": "Measure the engine's throughput against the plain base and against PEFT.",
    "methods": "List the search methods with their sources and options.",
    "tasks": "List the built-in tasks; a JSONL file of yours works in their place.",
    "doctor": "Check Python, the packages, the devices, the model cache and the disk.",
}


def load(verb: str) -> Any:
    """The click command of a verb, from ``evolora.cli.VERB``."""
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    single.command(name=verb)(import_module(f"evolora.cli.{verb}").command)
    return typer.main.get_command(single)


class Verbs(typer.core.TyperGroup):
    """The group of verbs: a verb's module is imported when that verb runs, not for the list of verbs."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Puts the real command in the place of its line in the list."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, load(name) if name else None, rest

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> Any:  # type: ignore[override]
        """Runs a verb and exits: 0 done, 1 failed, 2 the input is wrong, 130 interrupted."""
        arguments = list(sys.argv[1:] if args is None else args)
        extra |= {"standalone_mode": False}
        try:
            code = super().main(arguments, **extra)
        except (Exception, KeyboardInterrupt) as error:
            code = fail(error, arguments)
        else:
            if code == INTERRUPTED:  # typer has made a number of the KeyboardInterrupt
                fail(KeyboardInterrupt(), arguments)
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(
    name="evolora",
    cls=Verbs,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@app.callback(invoke_without_command=True)
def evolora(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Evolve LoRA adapters: adapt a frozen language model from rewards alone.

    Start with [bold]evolora demo[/bold]; then [bold]evolora adapt --help[/bold].
    """
    if version:
        typer.echo(f"evolora {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _line(text: str) -> Any:
    def verb() -> None: ...

    verb.__doc__ = text
    return verb


for _name, _text in VERBS.items():
    app.command(_name)(_line(_text))
