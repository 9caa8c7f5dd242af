"""Studies whose cells are searches on a language model, all at equal forward FLOPs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from evolora.budget import Budget
from evolora.studies.study import Arm, Measure, Settings, Study
from evolora.studies.trial import MEASURES, Trial, search

if TYPE_CHECKING:
    from evolora.adapters import Adapter
    from evolora.problems import Problem

UNDECIDED = "the interval of the paired difference over seeds does not lie above zero, or p >= 0.05"


class SearchStudy(Study):
    """A study of search methods.

    Attributes:
        methods: arm to the method and its options, beside what is tuned and the preset's ``population``.
        grids: arm to the settings that it chooses among; an arm that is missing has ``grid``.
        grid: see ``grids``.
    """

    methods: ClassVar[Mapping[str, tuple[str, Mapping[str, Any]]]]
    grid: ClassVar[tuple[Settings, ...]] = ()
    grids: ClassVar[Mapping[str, tuple[Settings, ...]]] = {}
    measures: ClassVar[Mapping[str, Measure]] = MEASURES

    @abstractmethod
    def problem(self, arm: str, seed: int, settings: Settings) -> tuple[Problem, Adapter | None]:
        """What an arm improves, and the adapter that it begins at; None is the base."""

    def arms(self, settings: Settings) -> Mapping[str, Arm]:
        """Every method with its grid."""
        return {arm: Arm({"arm": arm}, self.grids.get(arm, self.grid)) for arm in self.methods}

    def cell(self, options: Settings, seed: int, settings: Settings) -> dict[str, Any]:
        """One search, and what came out of it on fresh prompts."""
        method, given = self.methods[options["arm"]]
        tuned = {name: value for name, value in options.items() if name != "arm"}
        problem, start = self.problem(options["arm"], seed, settings)
        budget = Budget(**{self.limit(options["arm"]): settings["flops"]})
        trial = search(problem, method, {**settings["common"], **given, **tuned}, budget, seed, start)
        found = {"validation": trial.validated(), **trial.record()}
        if settings["reported"]:
            found |= trial.tested(start) | self.further(trial, seed)
        return found

    def limit(self, arm: str) -> str:
        """What the preset's ``flops`` limit: the field of :class:`Budget`."""
        return "forward_flops"

    def further(self, trial: Trial, seed: int) -> dict[str, Any]:
        """What else a study measures."""
        return {}
