"""The cells of a study on disk: one file each, named by the hash of all that made it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evolora.errors import RunError
from evolora.runs.atomic import write_atomically
from evolora.runs.plain import plain
from evolora.studies.plan import Plan, digest
from evolora.studies.study import Settings


@dataclass(frozen=True)
class Cell:
    """One run to be made.

    Attributes:
        arm: its name.
        options: of the arm, with the settings tried or chosen.
        seed: of the run.
        key: the hash of study, revision, options, seed, settings and data.
    """

    arm: str
    options: Settings
    seed: int
    key: str


def cell_of(plan: Plan, arm: str, extra: Settings, seed: int) -> Cell:
    """The cell of an arm with some settings of its grid."""
    options = {**plan.arms[arm].options, **extra}
    made_of = [plan.study, plan.revision, options, seed, dict(plan.settings), dict(plan.inputs)]
    return Cell(arm, options, seed, digest(made_of))


def tuning_cells(plan: Plan) -> list[Cell]:
    """Every setting of every grid on every tuning seed."""
    return [
        cell_of(plan, name, setting, seed)
        for seed in plan.tuning
        for name, arm in plan.arms.items()
        for setting in arm.grid
    ]


def reported_cells(plan: Plan, chosen: Mapping[str, Settings]) -> list[Cell]:
    """Every arm with what was chosen for it, seed by seed."""
    return [cell_of(plan, name, chosen[name], seed) for seed in plan.seeds for name in plan.arms]


def choose(plan: Plan, results: Mapping[str, Mapping[str, Any]]) -> dict[str, Settings]:
    """For each arm the setting of the highest mean validation over the tuning seeds; the first of equals.

    Args:
        plan: names the grids.
        results: key of each tuning cell to what it returned.
    """
    chosen: dict[str, Settings] = {}
    for name, arm in plan.arms.items():
        chosen[name] = max(arm.grid, key=lambda s: _mean(_validation(plan, name, s, results)), default={})
    return chosen


def _validation(
    plan: Plan, arm: str, setting: Settings, results: Mapping[str, Mapping[str, Any]]
) -> Sequence[float]:
    found = (results[cell_of(plan, arm, setting, seed).key]["validation"] for seed in plan.tuning)
    # a run that came to nothing is never chosen
    return [float("-inf") if value is None else value for value in found]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


class CellStore:
    """Cells that are done, in a folder.

    Args:
        folder: where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, cells: Iterable[Cell]) -> dict[str, dict[str, Any]]:
        """Key to result of those that are done.

        Raises:
            RunError: a file of a cell is damaged.
        """
        found = {}
        for cell in cells:
            path = self.folder / f"{cell.key}.json"
            if not path.is_file():
                continue
            try:
                found[cell.key] = json.loads(path.read_bytes())["result"]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise RunError(f"a damaged cell ({error})", where=path, mend="remove the file") from None
        return found

    def save(self, cell: Cell, result: Mapping[str, Any], seconds: float) -> None:
        """Writes a cell that is done, atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        made = {"arm": cell.arm, "options": dict(cell.options), "seed": cell.seed, "seconds": seconds}
        text = json.dumps(plain(made | {"result": dict(result)}), indent=1)
        write_atomically(self.folder / f"{cell.key}.json", text + "\n")
