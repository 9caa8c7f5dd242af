"""`evolora evaluate`: the base and adapters on one task."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from evolora.cli.options import Device, Dtype, Json, MaxTokens, Model, Quiet, Seed, Size, Threads, Trust
from evolora.cli.output import clean_stdout, emit, interval, percent, table
from evolora.cli.progress import make_progress
from evolora.cli.quiet import quiet_libraries
from evolora.cli.story import points, verdict
from evolora.config import read_escapes
from evolora.errors import ConfigError

_SPLITS = ("train", "validation", "test")


def command(
    adapters: Annotated[
        list[Path] | None, typer.Argument(help="Adapter folders.", show_default=False)
    ] = None,
    task: Annotated[
        str, typer.Option("--task", help="A built-in task or a JSONL file.", show_default=False)
    ] = ...,  # type: ignore[assignment]
    model: Model = "smollm2-135m",
    reward: Annotated[str | None, typer.Option("--reward", help="The task's own if not given.")] = None,
    stop: Annotated[str | None, typer.Option("--stop", help="Ends an answer, as '\\n'.")] = None,
    shots: Annotated[int, typer.Option("--shots", min=0, help="Solved examples before each prompt.")] = 0,
    split: Annotated[str, typer.Option("--split", help="train, validation or test.")] = "test",
    train: Size = None,
    validation: Size = None,
    test: Size = None,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", min=1, help="Longest completion.")
    ] = None,
    seed: Seed = 0,
    dtype: Dtype = "float32",
    device: Device = "auto",
    threads: Threads = None,
    max_tokens: MaxTokens = None,
    trust_remote_code: Trust = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the base and adapters on a task, per family, with 95 % intervals.

    Example: [bold]evolora evaluate --task demo runs/demo/adapter[/bold]
    """
    if split not in _SPLITS:
        raise ConfigError(f"{split!r} is no split", where="--split", mend=f"choose {', '.join(_SPLITS)}")
    quiet_libraries()
    progress = make_progress(quiet=quiet)
    with clean_stdout():
        import torch

        from evolora.adapters import Adapter
        from evolora.adapters.preflight import preflight
        from evolora.engine import Engine, load_base
        from evolora.problems import answer_length, difference, evaluate, load_reward
        from evolora.report.units import counts_right
        from evolora.tasks import load_task

        sizes = {"train": train, "validation": validation, "test": test}
        loaded = load_task(task, seed=seed, stop=read_escapes(stop), shots=shots, **sizes)
        for path in adapters or ():
            preflight(path)
        if threads is not None:
            torch.set_num_threads(threads)
        with contextlib.closing(load_reward(reward or loaded.reward)) as judge:
            progress.note(f"loading {model}")
            base = load_base(model, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
            members = [Adapter.load(path, base) for path in adapters or ()]
            for member in members:
                base.check(member)
            engine = Engine(base, max_tokens=max_tokens)
            examples = loaded.split(split)
            progress.note(f"{len(members) + 1} models on {len(examples)} {split} prompts of {loaded.name}")
            length = max_new_tokens or answer_length(base, loaded)
            results = evaluate(engine, None, examples, judge, length, stop=loaded.stop)
            if members:
                results += evaluate(engine, members, examples, judge, length, stop=loaded.stop)
        names = ["base", *(str(path) for path in adapters or ())]
        rows = [{"name": n, **r.as_dict(), "failed": r.failed} for n, r in zip(names, results, strict=True)]
        for row, result in zip(rows[1:], results[1:], strict=True):
            row["difference"] = difference(results[0], result)
    if json:
        what = {"model": model, "task": loaded.name, "reward": judge.name, "split": split, "seed": seed}
        emit({**what, "models": rows, "ledger": engine.ledger.snapshot()})
    else:
        _show(f"{loaded.name}, {split} split, reward {judge.name}", rows, counts_right(judge.name))


def _show(title: str, rows: Sequence[Mapping[str, Any]], share: bool) -> None:
    cells = []
    for row in rows:
        gain = row.get("difference")
        text = ""
        if gain:
            text = f"{points(gain['value'], share)} {interval(gain['ci'], share)} {verdict(gain['ci'])}"
        cells.append(
            (row["name"], "all", row["n"], percent(row["accuracy"], share), interval(row["ci"], share), text)
        )
        if len(row["families"]) > 1:
            for family, part in row["families"].items():
                scores = percent(part["accuracy"], share), interval(part["ci"], share)
                cells.append(("", family, part["n"], *scores, ""))
    numbers = ("n", "accuracy", "95 %")
    table(
        title, ("model", "family", "n", "accuracy", "95 %", "against the base (paired)"), cells, right=numbers
    )
