"""EGGROLL as it comes, from each kind of reward: results/rewards.json.

    python benchmarks/rewards.py                    all cells that are not recorded yet
    python benchmarks/rewards.py --only numeric

Claim, for each kind: with nothing set but what ARMS names, 1e13 forward FLOPs raise what the reward measures,
on held-out prompts, with each of three seeds (95 % interval over prompts above zero). What would falsify it:
a seed whose interval reaches zero. These seeds and prompts had no part in choosing settings (settings.py);
that the base is right about half the time on "numeric" was seen on prompts of all splits, to choose the task.

    exact      things, the demonstration's questions: the whole answer and its end are right, teacher-forced
    logprob    the same questions: the mean log-likelihood of an answer token, in nats
    contains   the same questions: a completion names the answer
    numeric    "two hundred and four =" after two solved ones: a completion's last number is the right one
    own        strings/upper:4 from the half-trained LoRA of exact_reward.py: a function gives the share of
               letters that are right, each in its place; the factors are searched, as there

Beside the reward, each cell says what became of exact match.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exact_reward import divided, half_trained
from methods import BATCH, FORWARD_FLOPS, SEEDS, made_with

import evolora as ev
from evolora.adapters import Adapter
from evolora.loop import Loop
from evolora.problems.problem import judge
from evolora.progress import Progress
from evolora.runs.atomic import write_atomically

OUT = Path(__file__).parents[1] / "results" / "rewards.json"
ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
SOLVED = "sixty-one = 61\ntwo hundred and four = 204\n"


def letters(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float]:
    """The share of the answer's letters that stand in their place; a longer completion counts against it."""
    shares = []
    for said, wanted in zip(completions, answer, strict=True):
        given, right = said.split(), wanted.split()
        shares.append(sum(map(str.__eq__, given, right)) / max(len(given), len(right)))
    return shares


@dataclass(frozen=True)
class Arm:
    """A reward, the task it is tried on, and what is not left at its default."""

    reward: Any
    task: str
    layers: str = "top:4"
    options: dict[str, Any] = field(default_factory=dict)


ARMS = {
    "exact": Arm("exact", "things"),
    "logprob": Arm("logprob", "things"),
    "contains": Arm("contains", "things"),
    "numeric": Arm("numeric", "digits"),
    "own": Arm(letters, "upper", "top:10", {"space": "factors", "sigma": 0.08, "export_rank": 8}),
}


def words(number: int) -> str:
    """A number below a thousand in words."""
    if number >= 100:
        rest = f" and {words(number % 100)}" if number % 100 else ""
        return f"{ONES[number // 100]} hundred{rest}"
    if number < 20:
        return ONES[number]
    return TENS[number // 10 - 2] + (f"-{ONES[number % 10]}" if number % 10 else "")


def digits(seed: int) -> ev.Task:
    """Numbers from 20 to 999, to be written in digits."""
    numbers = random.Random(0).sample([n for n in range(20, 1000) if n not in (61, 204)], 800)
    rows = [{"prompt": f"{SOLVED}{words(n)} =", "answer": f" {n}"} for n in numbers]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "digits.jsonl"
        file.write_text("\n".join(map(json.dumps, rows)))
        return ev.load_task(file, seed=seed, stop="\n", test=140)


def cell(base: ev.Base, arm: Arm, seed: int) -> dict[str, Any]:
    """One run; nothing of it is chosen on the test prompts that it reports."""
    engine, start = ev.Engine(base), None
    template = base.modules("all-linear", arm.layers)
    if arm.task == "digits":
        task = digits(seed)
    elif arm.task == "upper":
        lessons, task = divided(
            ev.load_task("strings/upper:4", seed=seed, train=656, validation=100, test=200)
        )
        school = ev.Problem(engine, lessons, ev.load_reward("exact"), 16, seed, template=template)
        start = half_trained(school, seed)
    else:
        task = ev.load_task(arm.task, seed=seed)
    problem = ev.Problem(engine, task, ev.load_reward(arm.reward), BATCH, seed, template=template)
    method = ev.Eggroll(**arm.options)
    budget = ev.Budget(forward_flops=FORWARD_FLOPS)
    search = Loop(problem, method, budget, None, Progress(), seed, start, None)
    began = time.process_time()
    search.go()
    seconds = time.process_time() - began
    adapted = method.adapter(search.result)
    before, after = (tested(problem, adapter) for adapter in (start, adapted))
    exact = [share_exact(found, task) for found in (before, after)]
    return {
        "steps": search.state.step,
        "start": before.accuracy,
        "adapted": after.accuracy,
        "difference": ev.difference(before, after),
        "exact": {"start": exact[0], "adapted": exact[1]},
        "ledger": search.ledger.snapshot(),
        "cpu_seconds": seconds,
    }


def tested(problem: ev.Problem, adapter: Adapter | None) -> ev.Evaluation:
    """The test prompts' completions, judged by the reward."""
    task = problem.task
    return ev.evaluate(
        problem.engine, adapter, task.test, problem.reward, problem.max_new_tokens, stop=task.stop
    )[0]


def share_exact(found: ev.Evaluation, task: ev.Task) -> float:
    """How many of the same completions are exactly right."""
    return judge(ev.load_reward("exact"), task.test, [found.completions]).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(ARMS), default=list(ARMS))
    given = parser.parse_args()
    record: dict[str, Any] = {"study": "rewards", "forward_flops": FORWARD_FLOPS, "batch": BATCH, "cells": []}
    if OUT.exists():
        record = json.loads(OUT.read_text())
    done = {(c["reward"], c["seed"]) for c in record["cells"]}
    base = ev.load_base("smollm2-135m")
    for seed in SEEDS:
        for name in given.only:
            if (name, seed) in done:
                continue
            arm, found = ARMS[name], cell(base, ARMS[name], seed)
            settings = {"task": arm.task, "layers": arm.layers, "options": arm.options}
            record["provenance"] = made_with()
            commit = record["provenance"]["git"]
            record["cells"].append({"reward": name, "seed": seed, **settings, **found, "git": commit})
            write_atomically(OUT, json.dumps(record, indent=1) + "\n")
            print(name, seed, found["steps"], found["start"], found["adapted"], found["exact"], flush=True)


if __name__ == "__main__":
    main()
