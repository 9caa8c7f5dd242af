"""The mechanism gate: does replicator-mutation search do what its equations say, and does it search at all?

First the arithmetic, on whole searches against closed forms (``checks``), then a noisy convex problem of 8
dimensions and 400 evaluations against a tuned gradient (``proxy``), where every arm is tuned on as many
settings. The grids are the middle of larger ones that were tried on the tuning seeds before; the seeds
reported are not those of that trial.

Source: arXiv 2607.02171 and a public report on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import nan
from typing import Any, ClassVar

from evolora.studies.judgement import compared
from evolora.studies.replicator import checks, proxy
from evolora.studies.study import Arm, Cells, Claim, Finding, Measure, Preset, Settings, Study

CHECKS = "checks"
EXACT, ROUNDING, SAMPLED, CHANCE = 1e-6, 1e-12, 0.01, 0.01
_WORSE = "the interval of the paired difference over seeds does not lie above zero, or p >= 0.05"


def _grid(**axes: Sequence[float]) -> tuple[dict[str, float], ...]:
    return tuple(dict(zip(axes, values, strict=True)) for values in product(*axes.values()))


PLAIN = _grid(kappa=(8, 32, 128, 512), diffusion=(0.002, 0.008, 0.032), lambda_m=(1, 5))
OWN = _grid(kappa=(0.5, 2, 8, 32), diffusion=(0.008, 0.032, 0.128), lambda_m=(1, 5))
STANDARDISED = _grid(kappa=(1, 2, 4, 8), diffusion=(0.008, 0.032, 0.128), lambda_m=(1, 5))
ES = _grid(sigma=(0.05, 0.1, 0.2, 0.4), lr=(0.7, 1, 1.5, 2, 3, 4))
ADAM = _grid(lr=(0.01, 0.02, 0.04, 0.06, 0.08, 0.11, 0.15, 0.2, 0.3, 0.45, 0.6, 1.2), beta2=(0.9, 0.99))


class ReplicatorMechanism(Study):
    """See the module's text."""

    name: ClassVar[str] = "replicator-mechanism"
    summary: ClassVar[str] = "the replicator's equations, and a noisy convex problem against a tuned gradient"
    source: ClassVar[str] = "arXiv 2607.02171"
    claims: ClassVar[tuple[Claim, ...]] = (
        Claim("mass", "the weights sum to 1 at every step", "a sum further than 1e-12 from 1", "4.4e-16"),
        Claim(
            "selection",
            "log-odds at constant rewards grow by kappa dt (r1 - r2) a step",
            "a relative error above 1e-6 at any kappa",
        ),
        Claim(
            "memory",
            "memories are the exponential average of a constant and of a step reward",
            "a relative error above 1e-6 at any step",
        ),
        Claim(
            "diffusion",
            "a mutated coordinate has variance 2 D n dt",
            "a mean relative error above 1 % at any D (200,000 samples a seed)",
            "0.23 to 0.48 %",
        ),
        Claim(
            "resampling",
            "offspring are drawn in proportion to the weights, exactly where 1 / sum w^2 < N / 3",
            "a chi-square p of 0.01 or less, or one firing that the rule denies",
        ),
        Claim(
            "a-tuned-gradient-is-not-beaten",
            "Adam, a gradient counted as three evaluations, ends below the published rule",
            _WORSE,
            "0.4475 +- 0.0788 (population) against 0.000150 +- 0.000040 (Adam)",
        ),
        Claim(
            "common-minibatches-help", "minibatches that all share end below minibatches of their own", _WORSE
        ),
        Claim(
            "averaging-helps", "all candidates at their weighted mean each step end below the rule", _WORSE
        ),
    )
    presets: ClassVar[Mapping[str, Preset]] = {
        "smoke": Preset((20, 21), (1000,), {"evaluations": 32}),
        "small": Preset(tuple(range(20, 32)), tuple(range(1000, 1006)), {"evaluations": 400}),
        "full": Preset(tuple(range(20, 60)), tuple(range(1000, 1012)), {"evaluations": 400}),
    }
    measures: ClassVar[Mapping[str, Measure]] = {
        "loss": Measure("validation loss of the best candidate", higher_is_better=False),
        "mean_loss": Measure("validation loss of the weighted mean", higher_is_better=False),
    }

    def arms(self, settings: Settings) -> Mapping[str, Arm]:
        """The checks, and every searcher with a grid of 24 settings."""
        grids = {arm: PLAIN for arm in proxy.VARIANTS}
        grids |= {"own_minibatches": OWN, "standardise": STANDARDISED, "together": STANDARDISED}
        grids |= {"openai_es": ES} | {arm: ADAM for arm in proxy.GRADIENTS}
        searchers = {arm: Arm({"arm": arm}, grid) for arm, grid in grids.items()}
        return {CHECKS: Arm({"arm": CHECKS})} | searchers

    def cell(self, options: Settings, seed: int, settings: Settings) -> dict[str, Any]:
        """All checks, or one search."""
        arm = options["arm"]
        if arm == CHECKS:
            names = ("mass", "selection", "memory", "diffusion", "resampling")
            return {name: getattr(checks, name)(seed) for name in names}
        setting = {key: value for key, value in options.items() if key != "arm"}
        found = proxy.solve(arm, seed, settings["evaluations"], setting)
        return {**found, "validation": -found["loss"]}

    def judge(self, cells: Cells) -> list[Finding]:
        """The checks at their tolerances, then the comparisons."""
        measured = [cells.results[CHECKS][seed] for seed in cells.seeds]
        limits = {"mass": ROUNDING, "selection": EXACT, "memory": EXACT}
        findings = [_within(name, [cell[name] for cell in measured], most) for name, most in limits.items()]
        findings += [_diffusion(measured), _resampling(measured)]
        for claim, better, worse in (
            ("a-tuned-gradient-is-not-beaten", "adam_three", "plain"),
            ("common-minibatches-help", "plain", "own_minibatches"),
            ("averaging-helps", "recombine", "plain"),
        ):
            findings.append(compared(cells, claim, better, worse, "loss", higher_is_better=False))
        return findings


def _within(name: str, errors: Sequence[float], most: float) -> Finding:
    worst = max(errors)
    words = f"the largest error of {len(errors)} seeds is {worst:.2g}; {most:g} was allowed"
    return Finding(name, worst <= most, worst, (nan, nan), nan, len(errors), words)


def _diffusion(measured: Sequence[Mapping[str, Any]]) -> Finding:
    by_size = list(zip(*(cell["diffusion"] for cell in measured), strict=True))
    means = [abs(sum(errors) / len(errors)) for errors in by_size]
    single = max(abs(error) for errors in by_size for error in errors)
    words = (
        f"mean errors {', '.join(f'{mean:.2%}' for mean in means)} at D = "
        f"{', '.join(f'{size:g}' for size in checks.DIFFUSIONS)}; {single:.2%} in the worst single seed"
    )
    return Finding("diffusion", max(means) <= SAMPLED, max(means), (nan, nan), nan, len(measured), words)


def _resampling(measured: Sequence[Mapping[str, Any]]) -> Finding:
    from scipy.stats import chisquare

    found = [cell["resampling"] for cell in measured]
    counts = [sum(column) for column in zip(*(one["offspring"] for one in found), strict=True)]
    weights = found[0]["weights"]
    expected = [weight / sum(weights) * sum(counts) for weight in weights]
    p = float(chisquare(counts, expected).pvalue)
    wrong, fired = (sum(one[key] for one in found) for key in ("wrong", "fired"))
    words = (
        f"chi-square p = {p:.3f} over {sum(counts)} offspring; {fired} resamplings, {wrong} against the rule"
    )
    holds = p > CHANCE and not wrong and fired > 0
    return Finding("resampling", holds, p, (nan, nan), nan, sum(counts), words)
