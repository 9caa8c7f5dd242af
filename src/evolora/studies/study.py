"""A study: claims stated first, arms that are compared, seeds that pair them.

    plan (hashed)  ->  tuning cells -> a choice for each arm  ->  cells  ->  findings -> verdict

A study says what is run and how it is judged; ``runner`` runs it. Tuning sees seeds of its own and validation
data; what is reported comes from other seeds and test data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import nan
from typing import Any, ClassVar

from evolora.stats import Estimate, Interval, paired_difference

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Claim:
    """What is said to hold before anything is run.

    Attributes:
        name: as in the record.
        says: the claim, one sentence.
        falsified_by: what would show that it does not hold.
        source: what the source found, where the claim is somebody's.
    """

    name: str
    says: str
    falsified_by: str
    source: str = ""


@dataclass(frozen=True)
class Finding:
    """What came of a claim.

    Attributes:
        claim: its name.
        holds: whether it does.
        effect: the size of what was claimed, in its own unit.
        ci: its 95 % interval.
        p: of no effect, two-sided; nan where nothing was tested.
        n: pairs or values it rests on.
        words: one sentence for a person.
        wins: how many of n pairs went the way that is claimed; None where nothing was paired.
        p_holm: p corrected for all tests of the study (Holm); the runner sets it.
    """

    claim: str
    holds: bool
    effect: float
    ci: Interval
    p: float
    n: int
    words: str
    wins: int | None = None
    p_holm: float = nan


@dataclass(frozen=True)
class Measure:
    """A number that every cell returns.

    Attributes:
        words: what it is, with its unit.
        higher_is_better: None where neither is.
    """

    words: str
    higher_is_better: bool | None = None


@dataclass(frozen=True)
class Arm:
    """What is compared.

    Attributes:
        options: given to every cell.
        grid: settings to choose among on validation; all arms that are tuned have as many. Empty: nothing is
            tuned.
    """

    options: Settings = field(default_factory=dict)
    grid: tuple[Settings, ...] = ()


@dataclass(frozen=True)
class Preset:
    """How large a study is run.

    Attributes:
        seeds: what is reported comes from these.
        tuning: settings are chosen on these; none of them is among ``seeds``.
        settings: budget, sizes and whatever else every cell is told.
    """

    seeds: tuple[int, ...]
    tuning: tuple[int, ...] = ()
    settings: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Cells:
    """The results of all reported cells.

    Attributes:
        seeds: those that pair the arms.
        results: arm to seed to what the cell returned.
        chosen: arm to the settings chosen for it.
    """

    seeds: tuple[int, ...]
    results: Mapping[str, Mapping[int, Mapping[str, Any]]]
    chosen: Mapping[str, Settings]

    def values(self, arm: str, key: str) -> list[float]:
        """One number of each seed's cell, in the order of the seeds; nan where it came to nothing."""
        found = (self.results[arm][seed][key] for seed in self.seeds)
        return [float("nan") if value is None else float(value) for value in found]

    def difference(self, arm: str, other: str, key: str) -> Estimate:
        """How much larger a number is in one arm than in the other, paired by seed."""
        return paired_difference(self.values(arm, key), self.values(other, key))


class Study(ABC):
    """One experiment.

    Attributes:
        name: as in ``evolora study run NAME``.
        summary: one line.
        source: the paper or report whose question it is.
        revision: raised whenever what a cell computes changes; older cells are then not taken.
        claims: stated before anything is run.
        presets: ``smoke`` (under two minutes), ``small`` (two cores), ``full``.
        measures: key of a number in every cell to what it is: what the page draws and tables hold.
        data: name of a file that a user may give (``--data NAME=PATH``) to what it holds.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    source: ClassVar[str]
    revision: ClassVar[int] = 1
    claims: ClassVar[tuple[Claim, ...]]
    presets: ClassVar[Mapping[str, Preset]]
    measures: ClassVar[Mapping[str, Measure]] = {}
    data: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def arms(self, settings: Settings) -> Mapping[str, Arm]:
        """The arms by name."""

    @abstractmethod
    def cell(self, options: Settings, seed: int, settings: Settings) -> dict[str, Any]:
        """One run; plain data.

        Args:
            options: of the arm, those chosen for it among them.
            seed: every random choice follows from it.
            settings: of the preset; ``data`` among them, name to path of the files that were given, and
                ``reported``, False where only ``validation`` is asked for.

        Returns:
            What ``judge`` reads; ``validation`` (higher is better) where arms are tuned. ``curves``, name to
            pairs (forward FLOPs, value), and ``ledger`` are drawn where they are there.
        """

    @abstractmethod
    def judge(self, cells: Cells) -> list[Finding]:
        """One finding a claim."""
