"""The verdict of a run in words: what a reader should know when reading one sentence only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from evolora.report.comparison import is_share, looks_of, pair, part_of
from evolora.report.run_data import RunData
from evolora.report.units import decimals, is_number, number, percent, signed

Tone = Literal["better", "worse", "unclear", "open"]


@dataclass(frozen=True)
class Verdict:
    """The head of the page.

    Attributes:
        headline: a few words.
        sentence: the finding with its numbers.
        remarks: what else must be known to read it rightly.
        tone: how to mark it.
    """

    headline: str
    sentence: str
    remarks: tuple[str, ...]
    tone: Tone


def give_verdict(data: RunData) -> Verdict:
    """Judges by the paired interval of the difference on fresh test prompts, and by nothing else."""
    base, adapted = part_of(data, "base"), part_of(data, "adapted")
    if not (is_number(base.get("accuracy")) and is_number(adapted.get("accuracy"))):
        return _unfinished(data)
    share = is_share(data)
    say = percent if share else number
    measure = "{} of {} right" if share else "mean reward {} on {}"
    tested = (
        f"{number(adapted['n'])} fresh test prompts"
        if is_number(adapted.get("n"))
        else "the fresh test prompts"
    )
    sentence = (
        f"{_how(data)}: {measure.format(say(adapted['accuracy']), tested)}, "
        f"against {say(base['accuracy'])} for the base"
    )
    difference = part_of(data, "difference")
    value, interval = difference.get("value"), pair(difference.get("ci"))
    if not is_number(value) or interval is None:
        return Verdict("Tested, without an interval", f"{sentence}.", _status_remarks(data), "unclear")
    low, high = interval
    sentence += f": {_change(value, interval, share)}."
    if low > 0:
        headline, meaning, tone = "The adapter helped", "The whole interval lies above zero.", "better"
    elif high < 0:
        headline, meaning, tone = "The adapter did harm", "The whole interval lies below zero.", "worse"
    else:
        headline, tone = "No clear difference", "unclear"
        meaning = "The interval holds zero: these prompts cannot tell the adapter from the base."
    remarks = (meaning, *_over_start(data, share), *_kept(data, share), *_status_remarks(data))
    return Verdict(headline, sentence, remarks, tone)  # type: ignore[arg-type]


def _change(value: float, interval: tuple[float, float], share: bool) -> str:
    scale, digits, unit = (100, 1, " points") if share else (1, 3, "")
    low, high = (decimals(scale * end, digits) for end in interval)
    return f"{signed(scale * value, digits)}{unit} (95 % interval {low} to {high})"


def _over_start(data: RunData, share: bool) -> tuple[str, ...]:
    """Against the adapter that the search began at, if it began at one."""
    start, over = part_of(data, "start"), part_of(data, "over_start")
    value, interval = over.get("value"), pair(over.get("ci"))
    if not is_number(start.get("accuracy")) or not is_number(value) or interval is None:
        return ()
    say = percent if share else number
    found = "better" if interval[0] > 0 else "worse" if interval[1] < 0 else "no clear difference"
    told = f"{say(start['accuracy'])}; the adapter is {_change(value, interval, share)} from there"
    return (f"The adapter that the search began at: {told}: {found}.",)


def _kept(data: RunData, share: bool) -> tuple[str, ...]:
    """Which state the looks at the validation prompts chose, if there were looks."""
    looks, kept = looks_of(data)
    if not looks:
        return ()
    return (kept_words(looks, kept, share),)


def _how(data: RunData) -> str:
    spent = data.ledger.get("backward_flops")
    return (
        f"Adapted by gradients ({data.find('method')})"
        if is_number(spent) and spent
        else "Adapted from reward alone"
    )


def _unfinished(data: RunData) -> Verdict:
    status = str(data.record["status"])
    kind, _, reason = status.partition(": ")
    headline = {
        "running": "Not finished",
        "stopped": "Stopped before a result",
        "failed": "The run failed",
        "done": "Done, without a test",
    }.get(kind, "No result")
    sentence = {
        "running": "This run is not finished.",
        "stopped": f"This run was stopped ({reason}) before it was tested; it can be resumed.",
        "failed": f"This run failed: {reason}",
        "done": "This run is done but left no test result.",
    }.get(kind, f"This run has no test result (status: {status}).")
    return Verdict(headline, sentence, (_progress(data),), "open")


def kept_words(looks: Sequence[Sequence[Any]], kept: int, share: bool) -> str:
    """Which state a guarded search kept, and what it was worth on the validation prompts.

    Args:
        looks: step and mean validation reward of each.
        kept: the step that was kept.
        share: the rewards are shares of right answers.
    """
    say = percent if share else number
    value, last = (
        say(found) if is_number(found) else "not judged"
        for found in (next(value for step, value in looks if step == kept), looks[-1][1])
    )
    values = f"{value}; {last} at the end"
    if kept == looks[0][0]:
        return f"The start was kept: no later state was better on the validation prompts ({values})."
    return f"Kept is the state of step {kept}, the best on the validation prompts ({values})."


def _status_remarks(data: RunData) -> tuple[str, ...]:
    status = str(data.record["status"])
    if status == "done":
        return ()
    if status == "running":
        return ("The run has not been closed yet.",)
    return (f"Status of the run: {status}.",)


def _progress(data: RunData) -> str:
    steps = len(data.journal)
    if not steps:
        return "No step is recorded yet."
    planned = f" of {number(data.planned_steps)}" if data.planned_steps else ""
    text = f"{number(steps)}{planned} step{'s' if steps != 1 or planned else ''} recorded"
    means = [entry["reward_mean"] for entry in data.journal if is_number(entry.get("reward_mean"))]
    if len(means) > 1:
        text += f"; the mean reward went from {number(means[0], 3)} to {number(means[-1], 3)}"
    return f"{text}. Rewards on training prompts are no test."
