"""What the page of a study is made from: its record, with every value where it is looked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from evolora.errors import RunError
from evolora.report.units import is_number, words

_MEND = "run the study again"


@dataclass(frozen=True)
class Measure:
    """A number that every cell has.

    Attributes:
        key: its name in the cells.
        words: what it is.
        higher_is_better: None where neither is, or where nobody said.
    """

    key: str
    words: str
    higher_is_better: bool | None = None

    @property
    def title(self) -> str:
        """Its words, and which way is better."""
        if self.higher_is_better is None:
            return self.words
        return f"{self.words} ({'higher' if self.higher_is_better else 'lower'} is better)"


@dataclass(frozen=True)
class StudyData:
    """The record of a study, for reading.

    Attributes:
        path: of the record.
        record: what it holds; what is optional there may be missing here.
    """

    path: Path
    record: Mapping[str, Any]

    @property
    def plan(self) -> Mapping[str, Any]:
        """What was laid down before the first cell."""
        return mapping(self.record["plan"])

    @property
    def cells(self) -> Sequence[Mapping[str, Any]]:
        """One an arm and seed."""
        cells: Sequence[Mapping[str, Any]] = self.record["cells"]
        return cells

    @cached_property
    def arms(self) -> list[str]:
        """In the order of the plan."""
        return list(dict.fromkeys([*mapping(self.plan.get("arms")), *(cell["arm"] for cell in self.cells)]))

    @cached_property
    def seeds(self) -> list[Any]:
        """In the order of the plan."""
        return list(dict.fromkeys([*listed(self.plan.get("seeds")), *(cell["seed"] for cell in self.cells)]))

    @cached_property
    def keys(self) -> list[str]:
        """Of the numbers in the cells; one that came to nothing in every cell is among them."""
        keys = dict.fromkeys(key for cell in self.cells for key in cell if key not in {"arm", "seed"})
        return [
            key
            for key in keys
            if any(is_number(cell.get(key)) for cell in self.cells)
            or all(cell.get(key) is None for cell in self.cells)
        ]

    @cached_property
    def measures(self) -> list[Measure]:
        """Those that the study names, else every number of the cells."""
        named = mapping(self.record.get("measures"))
        return [_measure(key, mapping(named.get(key))) for key in self.keys if not named or key in named]

    def measure(self, key: str) -> Measure:
        """What a number or a curve of the cells is, in words."""
        return _measure(key, mapping(mapping(self.record.get("measures")).get(key)))

    def of_arm(self, arm: str) -> list[Mapping[str, Any]]:
        """An arm's cells in the order of the seeds; an empty one where there is none."""
        found = {cell["seed"]: cell for cell in self.cells if cell["arm"] == arm}
        return [found.get(seed, {}) for seed in self.seeds]

    def values(self, arm: str, key: str) -> list[float | None]:
        """One number of an arm for each seed; None where it came to nothing."""
        found = (cell.get(key) for cell in self.of_arm(arm))
        return [value if is_number(value) else None for value in found]


def read_study(source: str | Path) -> StudyData:
    """Reads a study that was run.

    Args:
        source: its folder, or a copy of its ``record.json``.

    Raises:
        RunError: there is none, or its record is damaged.
    """
    path = Path(source)
    path = path if path.is_file() else path / "record.json"
    try:
        record = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise RunError("holds no finished study (no record.json)", where=source, mend=_MEND) from None
    except (OSError, ValueError) as error:
        raise RunError(f"cannot be read ({error})", where=path, mend=_MEND) from None
    if wrong := _wrong(record):
        raise RunError(f"is no record of a study ({wrong})", where=path, mend=_MEND)
    return StudyData(path, record)


def is_study(source: str | Path) -> bool:
    """Whether a folder is a study's (run to its end or not) and not a run's; a file may be its record."""
    path = Path(source)
    if path.is_file():
        return path.suffix == ".json"
    mine = any((path / name).is_file() for name in ("record.json", "plan.json"))
    return mine and not (path / "run.json").is_file()


def mapping(value: Any) -> Mapping[str, Any]:
    """The value where it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def listed(value: Any) -> Sequence[Any]:
    """The value where it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def _measure(key: str, told: Mapping[str, Any]) -> Measure:
    better = told.get("higher_is_better")
    return Measure(key, str(told.get("words") or words(key)), better if isinstance(better, bool) else None)


def _wrong(record: Any) -> str:
    """What keeps it from being a record; empty if nothing does."""
    if not isinstance(record, dict):
        return "it is no JSON object"
    for key, kind in (("study", str), ("preset", str), ("plan", dict), ("cells", list), ("findings", list)):
        if not isinstance(record.get(key), kind):
            return f"it has no {key}"
    if not all(isinstance(cell, dict) and isinstance(cell.get("arm"), str) for cell in record["cells"]):
        return "a cell has no arm"
    if not all(isinstance(cell.get("seed"), int | str) for cell in record["cells"]):
        return "a cell has no seed"
    if not all(isinstance(f, dict) and isinstance(f.get("claim"), str) for f in record["findings"]):
        return "a finding has no claim"
    return ""
