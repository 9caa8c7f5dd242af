"""Runs a study: the plan first, then its cells in any order and any number of processes, then the findings.

FOLDER/plan.json     written before a cell is run; another plan is refused there
FOLDER/cells/*.json  one a cell; what is done is not done again
FOLDER/record.json   plan, choices, cells and findings together: what is committed
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evolora.errors import RunError
from evolora.progress import Progress
from evolora.runs import Interrupt
from evolora.runs.atomic import write_atomically
from evolora.runs.lock import Lock
from evolora.runs.plain import plain
from evolora.runs.provenance import collect
from evolora.studies.cells import Cell, CellStore, choose, reported_cells, tuning_cells
from evolora.studies.judgement import corrected
from evolora.studies.plan import Plan, make_plan
from evolora.studies.study import Cells, Settings, Study
from evolora.studies.tally import Tally

Outcome = tuple[Cell, Any, float]  # a cell, its result or an exception, seconds


def run_study(
    study: Study,
    preset: str,
    folder: str | Path,
    *,
    data: Mapping[str, Path] | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Runs what is not done yet, and judges.

    Args:
        study: what is run.
        preset: how large.
        folder: of this study and preset; may hold some of the cells already.
        data: name to path of the files that the study is to read (``Study.data``).
        workers: processes; 1 stays in this one.
        progress: told of every cell.

    Returns:
        What ``record.json`` holds: ``plan``, ``chosen``, ``cells``, ``findings``, ``provenance``.

    Raises:
        ConfigError: there is no such preset or data.
        RunError: the folder holds another plan, another process writes there, or cells failed.
        KeyboardInterrupt: interrupted; cells that were done are kept.
    """
    plan, path, progress = make_plan(study, preset, data), Path(folder), progress or Progress()
    settings = {**plan.settings, "data": {name: str(file) for name, file in (data or {}).items()}}
    path.mkdir(parents=True, exist_ok=True)
    lock = Lock(path / "study.lock")
    try:
        _state(plan, path / "plan.json")
        for warning in plan.warnings:
            progress.note(warning)
        store, tally = CellStore(path / "cells"), Tally(plan, progress)
        tuning, reporting = ({**settings, "reported": reported} for reported in (False, True))
        chosen = choose(plan, _run(study, tuning, tuning_cells(plan), store, workers, tally))
        for arm, setting in chosen.items():
            if setting:
                progress.note(f"chosen for {arm}: " + ", ".join(f"{k} {v:g}" for k, v in setting.items()))
        cells = reported_cells(plan, chosen)
        results = _run(study, reporting, cells, store, workers, tally)
        record = _record(study, plan, chosen, cells, results)
        write_atomically(path / "record.json", json.dumps(record, indent=1) + "\n")
        return record
    finally:
        progress.finish()
        lock.release()


def _state(plan: Plan, path: Path) -> None:
    """Writes the plan down before anything is run; refuses a folder of another."""
    record = plan.record()
    if not path.exists():
        write_atomically(path, json.dumps(record, indent=1) + "\n")
        return
    try:
        known = json.loads(path.read_bytes())
    except ValueError as error:
        raise RunError(f"a damaged plan ({error})", where=path, mend="choose another folder") from None
    if known.get("digest") != record["digest"]:
        changed = [key for key in record if key != "digest" and known.get(key) != record[key]]
        raise RunError(
            f"another plan was laid down here (it differs in {', '.join(changed)})",
            where=path,
            mend="choose another folder: a plan is not changed once cells are seen",
        )


def _run(
    study: Study,
    settings: Settings,
    cells: Sequence[Cell],
    store: CellStore,
    workers: int,
    tally: Tally,
) -> dict[str, Any]:
    """Key to result of all cells; runs those that are missing."""
    known = store.load(cells)
    missing = {cell.key: cell for cell in cells if cell.key not in known}
    tally.found(cell for cell in cells if cell.key in known)
    failed: list[str] = []
    with Interrupt() as interrupt:
        todo = list(missing.values())
        outcomes = (
            _in_processes(study, settings, todo, workers)
            if workers > 1
            else (_work(study, settings, cell) for cell in todo)
        )
        for cell, outcome, seconds in outcomes:
            if isinstance(outcome, BaseException):
                failed.append(f"{cell.arm}, seed {cell.seed}: {type(outcome).__name__}: {outcome}")
            else:
                store.save(cell, outcome, seconds)
            tally.ran(same for same in cells if same.key == cell.key)
            if interrupt.requested:
                raise KeyboardInterrupt
    if failed:
        raise RunError(
            f"{len(failed)} of {len(missing)} cells failed, the first: {failed[0]}",
            where=study.name,
            mend="run it again once the cause is mended: the others are kept",
        )
    return store.load(cells)


def _in_processes(study: Study, settings: Settings, cells: Sequence[Cell], workers: int) -> Iterator[Outcome]:
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = {pool.submit(_work, study, settings, cell): cell for cell in cells}
        try:
            for future in as_completed(futures):
                error = future.exception()  # of the process itself: a cell's own comes as its outcome
                yield future.result() if error is None else (futures[future], error, 0.0)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _work(study: Study, settings: Settings, cell: Cell) -> Outcome:
    """A cell, its result or why it failed, and the seconds that it took."""
    began = time.perf_counter()
    try:
        outcome: Any = study.cell(cell.options, cell.seed, settings)
    except Exception as error:  # whatever it is, the other cells go on, and it is told at the end
        outcome = error
    return cell, outcome, time.perf_counter() - began


def _record(
    study: Study, plan: Plan, chosen: dict[str, Settings], cells: Sequence[Cell], results: dict[str, Any]
) -> dict[str, Any]:
    by_arm: dict[str, dict[int, Any]] = {name: {} for name in plan.arms}
    for cell in cells:
        by_arm[cell.arm][cell.seed] = results[cell.key]
    findings = corrected(study.judge(Cells(plan.seeds, by_arm, chosen)))
    record: dict[str, Any] = {
        "study": plan.study,
        "preset": plan.preset,
        "plan": plan.record(),
        "chosen": {name: dict(setting) for name, setting in chosen.items()},
        "cells": [{"arm": cell.arm, "seed": cell.seed, **results[cell.key]} for cell in cells],
        "measures": {key: asdict(measure) for key, measure in study.measures.items()},
        "findings": [asdict(finding) for finding in findings],
        "provenance": collect(),
    }
    return dict(plain(record))
