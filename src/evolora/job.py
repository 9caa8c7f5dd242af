"""One configuration carried out: everything is checked, then loaded, adapted, tested and written down."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evolora.adaptation import Adaptation, improve, samples
from evolora.adapters import Adapter
from evolora.adapters.preflight import preflight as check_folder
from evolora.budget import Budget
from evolora.config import BUDGETS, AdaptConfig
from evolora.diagnostics import check_prior, prior_task
from evolora.engine import Engine, Ledger, load_base
from evolora.errors import ConfigError, RunError
from evolora.loop import first_state
from evolora.problems import Problem, load_reward
from evolora.problems.problem import render
from evolora.progress import Progress
from evolora.runs import RunFolder
from evolora.runs.atomic import write_atomically
from evolora.runs.contents import Contents, refuse_if_done, refuse_unless_free
from evolora.runs.plain import plain
from evolora.runs.provenance import collect
from evolora.search import AnyMethod, GradientMethod, PolicyMethod, Strategy, make_method
from evolora.tasks import Task, load_task

_MAY_CHANGE = (*(f"budget_{name}" for name in BUDGETS), "out", "threads", "diagnose", "retain")


@dataclass(frozen=True)
class Setting:
    """What a configuration names, loaded and checked against each other."""

    problem: Problem
    method: AnyMethod
    start: Adapter | None
    prior: Task | None = None


def carry_out(config: AdaptConfig, progress: Progress | None = None) -> dict[str, Any]:
    """Adapts as the configuration says, in its run folder; returns what ``result.json`` holds.

    What can be wrong with the input is found before the folder is made or touched: texts are tokenised, the
    base answers one prompt, and a reward of completions judges the base's.

    Raises:
        InputError: an option, the task, the reward, the model, the start or the folder is wrong.
        KeyboardInterrupt: interrupted; what was done is saved.
    """
    progress = progress or Progress()
    if config.resume:
        refuse_if_done(Contents(config.out))
    else:
        refuse_unless_free(Contents(config.out), config.overwrite)
    budget = Budget(**config.budgets())
    with _set_up(config, progress) as setting:
        problem = setting.problem
        made_of = _made_of(config, problem)
        if config.resume:
            _refuse_other(Contents(config.out).record(), made_of, config.out)
        else:
            first_state(problem, setting.method, config.seed, setting.start)
            _try(problem, setting.method)
            if setting.prior is not None:
                check_prior(problem.engine, setting.prior)
        with _open(config, problem) as run:
            run.record(provenance=collect(), **made_of)
            outcome = improve(
                problem,
                setting.method,
                budget,
                seed=config.seed,
                start=setting.start,
                export_rank=config.export_rank,
                watch=config.watch(),
                prior=setting.prior,
                run=run,
                progress=progress,
            )
            return _write(config, run, problem, outcome)


def preflight(config: AdaptConfig, progress: Progress | None = None) -> dict[str, Any]:
    """Tries a ladder of sigmas on one minibatch, and says which to take; nothing is written.

    Raises:
        InputError: as for ``carry_out``; or the method has no antithetic pairs.
    """
    from evolora.diagnostics.sigma import refuse_unless_swept, sigma_ladder

    progress = progress or Progress()
    refuse_unless_swept(_method(config))
    with _set_up(config, progress) as setting:
        assert isinstance(setting.method, Strategy)
        _try(setting.problem, setting.method)
        progress.note("trying sigmas on one minibatch")
        found = sigma_ladder(setting.problem, setting.method, config.seed, start=setting.start)
        spent: dict[str, Any] = {"ledger": setting.problem.engine.ledger.snapshot()}
        result: dict[str, Any] = plain(asdict(found) | spent)
        return result


def _method(config: AdaptConfig) -> AnyMethod:
    """The method with its options.

    Raises:
        ConfigError: an option is unknown or out of range, or a rank is asked for twice, differently.
    """
    twice = config.options.get("export_rank", config.export_rank)
    if config.export_rank is not None and twice != config.export_rank:
        raise ConfigError(
            f"export_rank is {twice} among the method's options and {config.export_rank} as --export-rank",
            where=config.method,
            mend="give one of them",
        )
    return make_method(config.method, **config.options)


@contextmanager
def _set_up(config: AdaptConfig, progress: Progress) -> Iterator[Setting]:
    method = _method(config)
    if getattr(method, "sigma", None) == 0:
        progress.note("sigma is 0: nothing is tried, so nothing can be learned")
    task = load_task(config.task, seed=config.seed, stop=config.stop, shots=config.shots, **config.sizes())
    for warning in task.warnings:
        progress.note(f"{task.name}: {warning}")
    prior = prior_task(task, config.retain, config.seed) if config.diagnose else None
    reward = load_reward(config.reward or task.reward, timeout=config.reward_timeout)
    try:
        if config.start is not None:
            check_folder(config.start)
        if config.threads is not None:
            import torch

            torch.set_num_threads(config.threads)
        progress.note(f"loading {config.model}")
        base = load_base(
            config.model, dtype=config.dtype, device=config.device, trust_remote_code=config.trust_remote_code
        )
        start = None if config.start is None else Adapter.load(config.start, base)
        if start is not None:
            base.check(start)
        engine = Engine(base, max_tokens=config.max_tokens)
        template = base.modules(config.targets, config.layers)
        problem = Problem(
            engine, task, reward, config.batch, config.seed, config.max_new_tokens, template=template
        )
        yield Setting(problem, method, start, prior)
    finally:
        reward.close()


def _made_of(config: AdaptConfig, problem: Problem) -> dict[str, Any]:
    """What the result depends on besides the options, each with a fingerprint."""
    base, task, reward = problem.engine.base, problem.task, problem.reward
    parts: dict[str, Any] = {
        "base": {"name": base.name, "reference": base.reference, "fingerprint": base.fingerprint},
        "data": {"task": task.name, "fingerprint": task.fingerprint, "source": task.source},
        "judge": {"reward": reward.name, "fingerprint": reward.fingerprint},
    }
    if config.start is not None:
        digest = hashlib.sha256()
        for file in sorted(config.start.glob("adapter_*")):
            digest.update(file.read_bytes())
        parts["start"] = {"adapter": str(config.start), "fingerprint": digest.hexdigest()}
    return parts


def _refuse_other(record: Mapping[str, Any], made_of: Mapping[str, Any], where: Path) -> None:
    """Raises RunError where a run is resumed with another base, data, reward or start than it began with."""
    for part, now in made_of.items():
        before = record.get(part) or now
        if before["fingerprint"] != now["fingerprint"]:
            raise RunError(
                f"the {part} changed since the run began ({before['fingerprint'][:12]}, now "
                f"{now['fingerprint'][:12]})",
                where=where,
                mend="bring the old one back, or start anew with another --out",
            )


def _try(problem: Problem, method: AnyMethod) -> None:
    """Runs what could stop a search half way: the texts, decoding, and a reward that judges completions."""
    problem.check_texts(trains=isinstance(method, GradientMethod), samples=isinstance(method, PolicyMethod))
    outer, problem.engine.ledger = problem.engine.ledger, Ledger()
    try:
        problem.engine.generate(
            None, render(problem.engine.base, problem.split("test")[:1]), max_new_tokens=1
        )
        if not problem.scored:
            problem.evaluate(None, 0).require_some(problem.reward.name)
    finally:
        problem.engine.ledger = outer


def _open(config: AdaptConfig, problem: Problem) -> RunFolder:
    task = problem.task
    record = config.record() | {"reward": config.reward or task.reward, "stop": config.stop or task.stop}
    if config.resume:
        return RunFolder.open(config.out, record, may_change=_MAY_CHANGE)
    return RunFolder.create(config.out, record, overwrite=config.overwrite)


def _write(config: AdaptConfig, run: RunFolder, problem: Problem, outcome: Adaptation) -> dict[str, Any]:
    from evolora.report import write_report

    result: dict[str, Any] = {
        "base": outcome.base.as_dict(),
        "adapted": outcome.adapted.as_dict(),
        "difference": outcome.difference,
        **_over_start(outcome),
        **({} if outcome.validation is None else {"validation": outcome.validation}),
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
    if outcome.diagnostics is not None:
        result["diagnostics"] = outcome.diagnostics
        run.save_diagnostics(outcome.diagnostics)
    _save_population(run, outcome.population)
    run.save_result(result)
    run.save_metrics()
    run.record(ledger=outcome.ledger.snapshot())
    run.finish()
    write_report(run.path)
    plain_result: dict[str, Any] = plain(result)
    return plain_result


def _over_start(outcome: Adaptation) -> dict[str, Any]:
    """What stands in the result of a run that began at an adapter."""
    if outcome.start is None:
        return {}
    return {"start": outcome.start.as_dict(), "over_start": outcome.over_start}


def _save_population(run: RunFolder, members: Mapping[str, Adapter]) -> None:
    """The members' PEFT folders, and what is known of each in ``index.json``, last."""
    if not members:
        return
    for name, member in members.items():
        member.save(run.population_path / name, overwrite=True)
    index = {name: member.provenance.get("member", {}) for name, member in members.items()}
    write_atomically(run.population_path / "index.json", json.dumps(plain(index), indent=1) + "\n")


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
