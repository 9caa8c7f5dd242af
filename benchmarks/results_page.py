"""Writes docs/results.md from the records in results: python benchmarks/results_page.py.

The page is the records as tables, so a number on it cannot differ from what was measured; a test compares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from methods import ARMS, SEEDS
from rewards import ARMS as REWARDS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results.md"
RECORDS = ("exact_reward", "rewards", "methods", "settings")

EXACT = """\
# What was found

Each table is a committed record of a named script, which says in its first lines what would falsify it.
This page is made from the records by `benchmarks/results_page.py`.

## A 0/1 reward alone

`benchmarks/exact_reward.py`, `results/exact_reward.json`. The reward says whether the whole answer, end
included, was exactly right, and nothing else. Claim: from a start above 0.2, held-out exact match rises by
0.15 or more on average over six seeds, the interval over seeds above zero, in under ten minutes of one core.

- **things**: the [demonstration](quickstart.md)'s task. The base as it is knows the answers and not their
  form; EGGROLL searches the weights of the top four layers.
- **upper**: `upper: g j w k ->` and ` G J W K`, which the base cannot do. A LoRA of rank 8 on the top ten
  layers is half trained by gradients first; from there EGGROLL searches its B; the gain is over that."""
ADVICE = """\
What it takes, in our hands: a start that is right now and then. Where only the form of the answer is missing,
the base is one, and the weights of the top layers are searched at `sigma` 0.03. Where a skill is half there,
the adapter that has it is the `--start`; its factors at `sigma` 0.08 (in units of B) or the weights at 0.02
go on from it: `evolora adapt --start half/adapter --set space=factors --set sigma=0.08 --reward exact`. If in
doubt, `--preflight`."""
KINDS = """\
## From each kind of reward

`benchmarks/rewards.py`, `results/rewards.json`: EGGROLL as it comes, {flops} forward FLOPs a run, batch 32,
layers as named. Claim, for each kind and each of three seeds: what the reward measures rises on held-out
prompts, the 95 % interval over prompts above zero. Exact match of the same completions stands beside.

- **exact**, **logprob** and **contains** ask the demonstration's questions.
- **numeric**: `two hundred and four =` after two solved ones.
- **own**: letters in upper case from the half-trained LoRA of *upper* above; the reward is a function: the
  share of letters that are right. Set: `space=factors`, `sigma=0.08`, `export_rank=8`."""
SETTINGS = """\
## How settings were chosen

`benchmarks/settings.py`, `results/settings.json`: each setting once, seed 0, {flops} forward FLOPs, scored by
the share of right answers to prompts that no table above reports. Differences below 0.1 mean nothing: it
is how we chose, not what we found. The replicator's options were spelt out in the record afterwards, when
its defaults changed, and the shares rounded to six digits; the numbers are as measured."""
METHODS = """\
## Every method, one budget

`benchmarks/methods.py`, `results/methods.json`: exact reward, {flops} forward FLOPs a run wherever they were
spent; backward passes are extra and stand beside. **strings** starts every method at one half-trained LoRA
(as *upper* above), **sentiment** (sentence polarity v1.0 by Pang
and Lee, the corpus that SST-2 was made of) at the base. Gains are over the start, on 200 test
prompts; the range is over seeds. The settings were carried over from a few trials of EGGROLL, not tuned for
each method: read it as what comes out of the box. `adamw` has seen the answers, the others have not. The
cells were made by several processes and merged; the provenance is the last one's. Those without a `git` of
their own come from commits of 2026-12-01. The replicator's default was changed while the table was being
filled, and its cell made again ([log](log.md))."""


def page(
    exact: Mapping[str, Any],
    rewards: Mapping[str, Any],
    methods: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> str:
    """The text of the page."""
    rows = [
        (
            name,
            found["seeds"],
            f"{found['start']:.3f}",
            f"{found['start'] + found['gain']:.3f}",
            f"{found['gain']:+.3f} [{found['ci'][0]:.3f}, {found['ci'][1]:.3f}]",
            f"{found['most_cpu_seconds']:.0f} s",
            "yes" if found["holds"] else "no",
        )
        for name, found in exact["summary"].items()
    ]
    columns = ("task", "seeds", "start", "adapted", "gain", "longest seed, one core", "holds")
    seeds = [
        (
            cell["arm"],
            cell["seed"],
            f"{cell['start']['accuracy']:.3f}",
            f"{cell['adapted']['accuracy']:.3f}",
            _gain(cell["difference"]),
        )
        for cell in exact["cells"]
    ]
    parts = [EXACT, table(columns, rows), "Seed by seed (the interval is over prompts):"]
    parts += [table(("task", "seed", "start", "adapted", "gain"), seeds), ADVICE]
    parts += [KINDS.format(flops=_flops(rewards)), *_unfilled(rewards["cells"], len(SEEDS) * len(REWARDS))]
    clear = sum(cell["difference"]["ci"][0] > 0 for cell in rewards["cells"])
    parts.append(_rewards(rewards["cells"]))
    parts.append(f"The interval lies above zero in {clear} of {len(rewards['cells'])} runs.")
    cells = methods["cells"]
    parts += [METHODS.format(flops=_flops(methods)), *_unfilled(cells, 2 * len(SEEDS) * len(ARMS))]
    for task in dict.fromkeys(cell["task"] for cell in cells):
        parts += [f"### {task}", _methods(cells, task)]
    parts += [SETTINGS.format(flops=_flops(settings)), _settings(settings["rows"])]
    return "\n\n".join(parts) + "\n"


def _rewards(cells: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            cell["reward"],
            cell["layers"],
            cell["seed"],
            cell["steps"],
            f"{cell['start']:.3f}",
            f"{cell['adapted']:.3f}",
            _gain(cell["difference"]),
            f"{cell['exact']['start']:.3f} -> {cell['exact']['adapted']:.3f}",
        )
        for name in REWARDS
        for cell in cells
        if cell["reward"] == name
    ]
    columns = ("reward", "layers", "seed", "steps", "start", "adapted", "gain", "exact match")
    return table(columns, rows)


def _settings(found: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            row["task"],
            row["method"],
            ", ".join(f"{name}={value}" for name, value in row["options"].items()) or "the defaults",
            row["steps"],
            f"{row['start']:.2f}",
            f"{row['right']:.2f}",
        )
        for row in found
    ]
    return table(("task", "method", "options", "steps", "start", "right"), rows)


def _flops(record: Mapping[str, Any]) -> str:
    return f"{record['forward_flops']:.0e}".replace("e+", "e")


def _unfilled(cells: Sequence[Mapping[str, Any]], planned: int) -> list[str]:
    missing = planned - len(cells)
    return [f"Being filled: {missing} of {planned} runs are still to come."] if missing else []


def _methods(cells: Sequence[Mapping[str, Any]], task: str) -> str:
    rows = []
    for arm in dict.fromkeys(cell["arm"] for cell in cells if cell["task"] == task):
        own = [cell for cell in cells if (cell["task"], cell["arm"]) == (task, arm)]
        gains = [cell["difference"]["value"] for cell in own]
        rows.append(
            (
                arm,
                len(own),
                f"{fmean(cell['start'] for cell in own):.3f}",
                f"{fmean(cell['adapted'] for cell in own):.3f}",
                f"{fmean(gains):+.3f}",
                f"{min(gains):+.3f} to {max(gains):+.3f}",
                f"{fmean(cell['steps'] for cell in own):.0f}",
                f"{fmean(cell['ledger']['backward_flops'] for cell in own) / 1e12:.1f}",
            )
        )
    columns = ("method", "seeds", "start", "adapted", "gain", "range", "steps", "backward TFLOP")
    return table(columns, rows)


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [" | ".join(columns), *(" | ".join(map(str, row)) for row in rows)]
    lines = [f"| {line} |" for line in lines]
    return "\n".join([lines[0], "|" + "---|" * len(columns), *lines[1:]])


def _gain(difference: Mapping[str, Any]) -> str:
    low, high = difference["ci"]
    return f"{difference['value']:+.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    records = [json.loads((ROOT / "results" / f"{name}.json").read_text()) for name in RECORDS]
    PAGE.write_text(page(*records), encoding="utf-8")


if __name__ == "__main__":
    main()
