"""`evolora adapt`: one adapter for one task; its options are the fields of `evolora.config.AdaptConfig`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from evolora.cli.options import Json, Quiet
from evolora.cli.output import clean_stdout, console, emit, table
from evolora.cli.progress import make_progress
from evolora.cli.quiet import quiet_libraries
from evolora.cli.story import tell
from evolora.config import AdaptConfig, read_yaml
from evolora.errors import ConfigError, RunError
from evolora.progress import Progress

_PANELS = {
    "What": (
        "model",
        "task",
        "reward",
        "reward_timeout",
        "shots",
        "stop",
        "max_new_tokens",
        "method",
        "options",
    ),
    "The adapter": ("targets", "layers", "start", "export_rank"),
    "How much": (
        "batch",
        "budget_steps",
        "budget_evaluations",
        "budget_tokens",
        "budget_forward_flops",
        "budget_flops",
        "budget_seconds",
        "train",
        "validation",
        "test",
    ),
    "On the way": ("validate_every", "patience"),
    "Afterwards": ("diagnose", "retain"),
    "The machine": ("dtype", "device", "threads", "max_tokens", "trust_remote_code"),
    "The run": ("seed", "out", "resume", "overwrite"),
}
_LEGEND = (
    "spread  rms of half the difference between the two members of a pair, in the reward's unit",
    "tied    share of the pairs whose members got the same reward",
    "signal  share of spread^2 that repeats on other prompts: 0 is luck, 1 is all signal",
    "harm    how much lower the members are rewarded than what they are perturbed around",
    "kl      how far a member is from the base in what that says, nats a token",
    "lr      the step, in units of sigma, that would gain most; gain: by how much",
)
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_SET = "An option of the method (see `evolora methods`); may be repeated."


def command(*, config: Path | None, preflight: bool, json: bool, quiet: bool, **given: Any) -> None:
    """Adapt a model to one task from a reward.

    Example: [bold]evolora adapt --task my.jsonl --reward exact --budget-steps 40 --out runs/mine[/bold]

    Every option can also stand in a YAML file given with --config (names as here; a method's own options
    under `options:`); the command line wins.
    """
    resolved = resolve(config, given)
    quiet_libraries()
    if preflight:
        look_ahead(resolved, json=json, progress=make_progress(quiet=quiet))
        return
    with clean_stdout():
        result = carry_out(resolved, make_progress(quiet=quiet))
    emit(result) if json else tell(result, resolved)


def look_ahead(config: AdaptConfig, *, json: bool, progress: Progress) -> None:
    """Prints what a ladder of sigmas shows on one minibatch, and which one to take."""
    from evolora.job import preflight

    with clean_stdout():
        found = preflight(config, progress)
        progress.finish()
    if json:
        emit(found)
        return
    columns = ("sigma", "spread", "tied", "signal", "harm", "kl", "lr", "gain")
    rows = [[f"{rung[name]:.3g}" for name in columns] for rung in found["rungs"]]
    table("Sigma pre-flight: one minibatch, the method's own perturbations", columns, rows, right=columns)
    say = console().print
    for line in _LEGEND:
        say(f"  {line}")
    say(f"\n{found['reason']}")
    if found["options"]:
        say("try: " + " ".join(f"--set {name}={value:.2g}" for name, value in found["options"].items()))
    say("nothing was written")


def carry_out(config: AdaptConfig, progress: Progress) -> dict[str, Any]:
    """Adapts; an interrupt says how to go on."""
    from evolora.job import carry_out as adapt

    try:
        return adapt(config, progress)
    except KeyboardInterrupt:
        if any(config.out.glob("checkpoints/step-*")):
            progress.note(f"what was done is saved; go on with: evolora adapt --resume --out {config.out}")
        raise
    finally:
        progress.finish()


def resolve(file: Path | None, given: Mapping[str, Any]) -> AdaptConfig:
    """The options of the file and of the command line as one config; the command line wins.

    With ``resume`` the config that the run saved stands below both, so that the folder alone is enough.

    Args:
        file: a YAML file, or None.
        given: option names to values; None, False and empty lists were not given.

    Raises:
        ConfigError: an unknown name or a value that does not fit.
    """
    stated = {name: value for name, value in given.items() if value not in (None, False, [])}
    values = read_yaml(file) if file is not None else {}
    options = values.get("options") or {}
    if not isinstance(options, dict):
        raise ConfigError("options: must be a mapping of the method's own options", where=file)
    options = options | dict(parse_settings(stated.pop("options", [])))
    values |= stated
    if values.get("resume") and not values.get("overwrite"):
        out = Path(values.get("out") or AdaptConfig.model_fields["out"].default)
        if not (out / "config.yaml").is_file():
            raise RunError("there is no run to resume", where=out, mend="give the --out folder of a run")
        below = read_yaml(out / "config.yaml")
        options = (below.get("options") or {}) | options
        values = below | values
    origins = {name: f"--{name.replace('_', '-')}" for name in stated}
    return AdaptConfig.make(values | {"options": options}, where=file, origins=origins)


def parse_settings(settings: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Reads ``name=value`` pairs; a value is a number, true, false, null or else text.

    Raises:
        ConfigError: a pair without ``=`` or without a name.
    """
    for setting in settings:
        name, separator, text = setting.partition("=")
        if not separator or not name.strip():
            raise ConfigError(
                f"{setting!r} is not NAME=VALUE", where="--set", mend="write it like --set sigma=0.02"
            )
        yield name.strip().replace("-", "_"), _value(text.strip())


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "null": None, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _signature() -> inspect.Signature:
    parameters = []
    for panel, names in _PANELS.items():
        for name in names:
            parameters.append(_option(name, panel))
    file = typer.Option("--config", help="A YAML file with any of these options.", rich_help_panel="The run")
    parameters.append(_parameter("config", Path | None, None, file))
    ladder = typer.Option(
        "--preflight", help="Try a ladder of sigmas on one minibatch, and stop.", rich_help_panel="On the way"
    )
    parameters.append(_parameter("preflight", bool, False, ladder))
    for name, annotation in (("json", Json), ("quiet", Quiet)):
        parameters.append(inspect.Parameter(name, _KEYWORD, default=False, annotation=annotation))
    return inspect.Signature(parameters)


def _option(name: str, panel: str) -> inspect.Parameter:
    """Flags stay flags; all else is text that the config reads, so that one place says what is wrong."""
    field = AdaptConfig.model_fields[name]
    flag = f"--{name.replace('_', '-')}"
    if field.annotation is bool:
        return _parameter(
            name, bool, False, typer.Option(flag, help=field.description, rich_help_panel=panel)
        )
    if name == "options":
        option = typer.Option("--set", help=_SET, metavar="NAME=VALUE", rich_help_panel=panel)
        return _parameter(name, list[str] | None, None, option)
    default = (
        "" if field.is_required() or field.default is None else f" [dim]\\[default: {field.default}][/dim]"
    )
    option = typer.Option(
        flag,
        help=f"{field.description}{default}",
        metavar=_metavar(field.annotation),
        show_default=False,
        rich_help_panel=panel,
    )
    return _parameter(name, str | None, None, option)


def _metavar(annotation: Any) -> str:
    kinds = {int: "INTEGER", float: "NUMBER", Path: "PATH"}
    return next((word for kind, word in kinds.items() if annotation in (kind, kind | None)), "TEXT")


def _parameter(name: str, annotation: Any, default: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(name, _KEYWORD, default=default, annotation=Annotated[annotation, option])


command.__signature__ = _signature()  # type: ignore[attr-defined]
command.__annotations__ = {p.name: p.annotation for p in command.__signature__.parameters.values()}  # type: ignore[attr-defined]
