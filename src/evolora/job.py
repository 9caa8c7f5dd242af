"""One configuration carried out: everything is checked, then loaded, adapted, tested and written down."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evolora.adaptation import Adaptation, improve, samples
from evolora.adapters import Adapter
from evolora.budget import Budget
from evolora.config import AdaptConfig
from evolora.engine import Engine, load_base
from evolora.errors import InputError
from evolora.problems import Problem, load_reward
from evolora.progress import Progress
from evolora.runs import RunFolder
from evolora.runs.contents import Contents, refuse_unless_free
from evolora.runs.plain import plain
from evolora.runs.provenance import collect
from evolora.search import make_method
from evolora.tasks import load_task

_MAY_CHANGE = ("budget_steps", "budget_evaluations", "budget_flops", "budget_seconds", "out", "threads")


def carry_out(config: AdaptConfig, progress: Progress | None = None) -> dict[str, Any]:
    """Adapts as the configuration says, in its run folder; returns what ``result.json`` holds.

    What can be wrong with the input is found before the folder is made; where the first rewards all fail,
    the folder is removed again.

    Raises:
        InputError: an option, the task, the reward, the model, the start or the folder is wrong.
        KeyboardInterrupt: interrupted; what was done is saved.
    """
    progress = progress or Progress()
    if not config.resume:
        refuse_unless_free(Contents(config.out), config.overwrite)
    method = make_method(config.method, **config.options)
    budget = Budget(
        config.budget_steps, config.budget_evaluations, config.budget_flops, config.budget_seconds
    )
    task = load_task(config.task, seed=config.seed, stop=config.stop, **config.sizes())
    for warning in task.warnings:
        progress.note(f"{task.name}: {warning}")
    reward = load_reward(config.reward or task.reward)
    try:
        start = None if config.start is None else Adapter.load(config.start)
        if config.threads is not None:
            import torch

            torch.set_num_threads(config.threads)
        progress.note(f"loading {config.model}")
        base = load_base(
            config.model, dtype=config.dtype, device=config.device, trust_remote_code=config.trust_remote_code
        )
        if start is not None:
            base.check(start)
        engine = Engine(base, max_tokens=config.max_tokens)
        template = base.modules(config.targets, config.layers)
        problem = Problem(engine, task, reward, config.batch, config.seed, template=template)
        with _open(config) as run:
            run.record(
                provenance=collect(),
                base={"name": base.name, "reference": base.reference, "fingerprint": base.fingerprint},
                data={"task": task.name, "fingerprint": task.fingerprint, "source": task.source},
            )
            try:
                outcome = improve(
                    problem,
                    method,
                    budget,
                    seed=config.seed,
                    start=start,
                    export_rank=config.export_rank,
                    run=run,
                    progress=progress,
                )
            except InputError:
                if not run.journal.read():
                    run.close()
                    shutil.rmtree(run.path, ignore_errors=True)
                raise
            return _write(config, run, problem, outcome)
    finally:
        reward.close()


def _open(config: AdaptConfig) -> RunFolder:
    if config.resume:
        return RunFolder.open(config.out, config.record(), may_change=_MAY_CHANGE)
    return RunFolder.create(config.out, config.record(), overwrite=config.overwrite)


def _write(config: AdaptConfig, run: RunFolder, problem: Problem, outcome: Adaptation) -> dict[str, Any]:
    from evolora.report import write_report

    outcome.adapter.save(run.adapter_path, overwrite=True)
    result: dict[str, Any] = {
        "base": outcome.base.as_dict(),
        "adapted": outcome.adapted.as_dict(),
        "difference": outcome.difference,
        "adapter": str(run.adapter_path),
        "report": str(run.report_path),
        "ledger": outcome.ledger.snapshot(),
        "testing": asdict(outcome.testing),
        "samples": samples(problem, outcome),
        "stopped": outcome.stopped,
        "method": config.method,
        "task": problem.task.name,
        "reward": problem.reward.name,
        "seed": config.seed,
        "steps": outcome.steps,
    }
    run.save_result(result)
    run.save_metrics()
    run.record(ledger=outcome.ledger.snapshot())
    run.finish()
    write_report(run.path)
    plain_result: dict[str, Any] = plain(result)
    return plain_result


def demo_config(seed: int = 0, out: str | Path = "runs/demo") -> AdaptConfig:
    """What ``evolora demo`` runs; the settings were chosen on validation prompts (see docs/log.md)."""
    return AdaptConfig(
        task="demo",
        reward="exact",
        method="eggroll",
        options={"sigma": 0.03, "lr": 1.0, "rank": 1, "population": 32},
        layers="top:4",
        batch=32,
        budget_steps=15,
        seed=seed,
        out=Path(out),
    )
