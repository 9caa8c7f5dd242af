"""The verdict of a study in words, and each claim with what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evolora.report.comparison import pair
from evolora.report.study_data import StudyData, listed, mapping
from evolora.report.units import NOTHING, is_number, number
from evolora.report.verdict import Verdict
from evolora.stats import fewest_pairs

LEVEL = 0.05


@dataclass(frozen=True)
class Judged:
    """A claim and its finding; either may be empty.

    Attributes:
        name: of the claim.
        claim: as the plan states it.
        finding: what came of it.
    """

    name: str
    claim: Mapping[str, Any]
    finding: Mapping[str, Any]

    @property
    def holds(self) -> bool | None:
        """None where it was not judged."""
        holds = self.finding.get("holds")
        return holds if isinstance(holds, bool) else None

    @property
    def mark(self) -> str:
        """The verdict in words."""
        return {True: "holds", False: "does not hold", None: "was not judged"}[self.holds]

    @property
    def says(self) -> str:
        """What was claimed; the name where nobody said."""
        return str(self.claim.get("says") or self.name)

    @property
    def effect(self) -> float | None:
        """None where it came to nothing."""
        effect = self.finding.get("effect")
        return effect if is_number(effect) else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of 95 %; None where it came to nothing."""
        return pair(self.finding.get("ci"))

    def stated(self) -> list[tuple[str, str]]:
        """What was said beforehand, and what is said now."""
        claim = self.claim
        told = [
            ("Claimed", claim.get("says")),
            ("Would be falsified by", claim.get("falsified_by")),
            ("The source found", claim.get("source")),
            ("Found here", self.finding.get("words")),
        ]
        return [(name, str(text)) for name, text in told if text]

    def measured(self) -> list[tuple[str, str]]:
        """The numbers of the finding."""
        found, ends = self.finding, self.interval
        numbers = [
            ("Effect", number(self.effect)),
            ("95 % interval", f"{number(ends[0])} to {number(ends[1])}" if ends else NOTHING),
            ("p", number(found.get("p"), 3)),
            ("n", number(found.get("n"))),
        ]
        if "p_holm" in found:  # where several claims were tested
            numbers.insert(3, ("p after Holm", number(found["p_holm"], 3)))
        if "wins" in found:
            numbers.insert(-1, ("Wins", _wins(found["wins"], found.get("n"))))
        return numbers if found else []


def judged(data: StudyData) -> list[Judged]:
    """Every claim in the order of the plan, then findings of no claim."""
    claims = {str(mapping(c).get("name")): mapping(c) for c in listed(data.plan.get("claims"))}
    findings = {finding["claim"]: finding for finding in data.record["findings"]}
    names = dict.fromkeys([*claims, *findings])
    return [Judged(name, claims.get(name, {}), findings.get(name, {})) for name in names]


def study_verdict(data: StudyData) -> Verdict:
    """How many claims hold, then one sentence for each; a claim that falls is no worse a result."""
    claims = judged(data)
    remarks = [f"{claim.mark.capitalize()}: {_sentence(claim)}" for claim in claims]
    return Verdict(_headline(claims), _lead(data), (*remarks, *_warnings(data)), "open")


def _headline(claims: list[Judged]) -> str:
    known = [claim.holds for claim in claims if claim.holds is not None]
    if not known:
        return "No claim was judged"
    if len(claims) == 1:
        return "The claim holds" if known[0] else "The claim does not hold"
    if all(known) and len(known) == len(claims):
        return "Both claims hold" if len(claims) == 2 else f"All {len(claims)} claims hold"
    held = sum(known)
    return f"{held or 'None'} of {len(claims)} claims {'holds' if held < 2 else 'hold'}"


def _lead(data: StudyData) -> str:
    parts = (data.arms, "arm"), (data.seeds, "seed"), (data.cells, "cell")
    sizes = [f"{number(len(found))} {noun}{'s' if len(found) != 1 else ''}" for found, noun in parts]
    return f"{', '.join(sizes)}. The claims were stated before the first cell was run."


def _sentence(claim: Judged) -> str:
    words = claim.finding.get("words")
    return f"{claim.says}: {str(words).removesuffix('.')}." if words else f"{claim.says}."


def _warnings(data: StudyData) -> tuple[str, ...]:
    least = fewest_pairs(LEVEL)
    if len(data.seeds) >= least:
        return ()
    return (f"So few seeds ({len(data.seeds)}) can never reach p = {LEVEL} when paired: that takes {least}.",)


def _wins(wins: Any, n: Any) -> str:
    if is_number(wins):
        return f"{number(wins)} of {number(n)}" if is_number(n) else number(wins)
    return NOTHING if wins is None else str(wins)
