"""Tells a person what an adaptation did: accuracies, the difference, samples, where things are."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evolora.cli.output import console, count, interval, percent

if TYPE_CHECKING:
    from evolora.config import AdaptConfig

_SAMPLES = 3
_WIDTH_OF_A_SAMPLE = 60


def tell(result: Mapping[str, Any], config: AdaptConfig) -> None:
    """Prints the result of an adaptation.

    Args:
        result: what ``result.json`` holds.
        config: what was asked for.
    """
    from evolora.report.diagnostic_table import diagnostic_table
    from evolora.report.units import counts_right
    from evolora.report.verdict import kept_words

    say, share = console().print, counts_right(result["reward"])
    base, adapted, difference = result["base"], result["adapted"], result["difference"]
    say(f"\n{result['task']} {what(result)}", style="bold")
    if result.get("stopped"):
        say(f"stopped by: {result['stopped']}")
    if seen := result.get("validation"):
        say(kept_words(seen["looks"], seen["kept"], share))
    gain, spread = points(difference["value"], share), interval(difference["ci"], share)
    say(f"  base     {percent(base['accuracy'], share):>8}  {interval(base['ci'], share)}")
    if begun := result.get("start"):
        say(f"  start    {percent(begun['accuracy'], share):>8}  {interval(begun['ci'], share)}")
    say(f"  adapted  {percent(adapted['accuracy'], share):>8}  {interval(adapted['ci'], share)}")
    say(f"  gain     {gain:>8}  {spread}  {verdict(difference['ci'])}")
    if over := result.get("over_start"):
        gained = points(over["value"], share)
        say(f"  on start {gained:>8}  {interval(over['ci'], share)}  {verdict(over['ci'])}")
    say(f"on {base['n']} test prompts that the search never saw; [95 % intervals], the gain's is paired\n")
    samples = pick(result.get("samples", ()))
    if samples:
        say("Answers before and after", style="bold")
        for sample in samples:
            say(f"  {short(sample['prompt'], end=True)}")
            say(f"    wanted     {short(sample['answer'])}")
            say(f"    base     {mark(sample['base_correct'], share)} {short(sample['base'])}")
            say(f"    adapted  {mark(sample['adapted_correct'], share)} {short(sample['adapted'])}")
        say("")
    if result.get("diagnostics"):
        say("What changed beside the task", style="bold")
        for name, text in diagnostic_table(result["diagnostics"]):
            say(f"  {name:<38} {text}")
        say("")
    say(f"adapter  {result['adapter']}   (a PEFT folder)")
    if result.get("report"):
        say(f"report   {result['report']}   (open it in a browser)")
    say(f"next     evolora inspect {result['adapter']}")
    say(f"         {again(result, config)}\n", soft_wrap=True)


def what(result: Mapping[str, Any]) -> str:
    """What was learned from, how long and by which method."""
    from evolora.search import GradientMethod
    from evolora.search.registry import methods

    shown = issubclass(methods()[result["method"]], GradientMethod)
    source = "its answers, judged by {}" if shown else "{} rewards"
    return f"from {source.format(result['reward'])}, {count(result['steps'], 'step')} of {result['method']}"


def again(result: Mapping[str, Any], config: AdaptConfig) -> str:
    """The command that measures the same prompts once more."""
    words = [
        "evolora",
        "evaluate",
        "--model",
        config.model,
        "--task",
        config.task,
        "--reward",
        result["reward"],
    ]
    if config.stop is not None:
        words += ["--stop", config.stop.replace("\n", "\\n")]
    if config.shots:
        words += ["--shots", str(config.shots)]
    for name, size in (*config.sizes().items(), ("max-new-tokens", config.max_new_tokens)):
        words += [] if size is None else [f"--{name}", str(size)]
    if config.seed:
        words += ["--seed", str(config.seed)]
    if config.dtype != "float32":
        words += ["--dtype", config.dtype]
    return shlex.join([*words, str(result["adapter"])])


def points(value: float | None, share: bool = True) -> str:
    """A difference with its sign, of shares in percentage points; a dash where there is none."""
    if value is None or math.isnan(value):
        return "-"
    return f"{100 * value:+.1f}" if share else f"{value:+.3f}"


def verdict(ci: Sequence[float | None]) -> str:
    """What a 95 % interval of a gain says."""
    low, high = ci
    if low is None or high is None:
        return "could not be judged"
    if low > 0:
        return "better"
    return "worse" if high < 0 else "no clear difference"


def pick(samples: Any) -> list[Mapping[str, Any]]:
    """A few samples, fairly: those that changed come first, gains and losses in turn."""
    gained = [s for s in samples if s["adapted_correct"] and not s["base_correct"]]
    lost = [s for s in samples if s["base_correct"] and not s["adapted_correct"]]
    same = [s for s in samples if bool(s["base_correct"]) == bool(s["adapted_correct"])]
    return [*gained[: _SAMPLES - 1], *lost[:1], *same, *gained[_SAMPLES - 1 :]][:_SAMPLES]


def mark(reward: float | None, share: bool = True) -> str:
    """Right or wrong in one character, a graded reward as a number; a question mark if it was not judged."""
    if reward is None or math.isnan(reward):
        return "?"
    if not share:
        return f"{reward:.2f}"
    return "✓" if reward else "✗"


def short(text: Any, *, end: bool = False) -> str:
    """The text on one line, cut to a width; ``end`` keeps its end, where a prompt's question stands."""
    line, room = str(text).replace("\n", " ⏎ ").strip(), _WIDTH_OF_A_SAMPLE - 1
    if len(line) <= _WIDTH_OF_A_SAMPLE:
        return line
    return "…" + line[-room:] if end else line[:room] + "…"
