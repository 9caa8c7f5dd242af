"""The record of a study, as ``evolora study run`` writes it."""

import json
import math
import random

ARMS = ("adamw", "eggroll", "replicator")
MEASURES = {
    "reward": {"words": "mean reward on fresh test prompts", "higher_is_better": True},
    "forgotten": {"words": "reward lost on the earlier task", "higher_is_better": False},
    "norm": {"words": "norm of the adapter", "higher_is_better": None},
}
CLAIMS = [
    {
        "name": "search-reaches-the-gradient",
        "says": "the searched adapter ends within two points of the one that gradients find",
        "falsified_by": "the interval of the paired difference lies below two points",
        "source": "0.46 against 0.47, in its third table",
    },
    {
        "name": "averaging-helps",
        "says": "replacing the members by their weighted mean each step raises the reward",
        "falsified_by": "the interval of the paired difference over seeds does not lie above zero",
        "source": "",
    },
    {
        "name": "forgets-less",
        "says": "the searched adapter forgets less of an earlier task than the one that gradients find",
        "falsified_by": "the interval of the paired difference does not lie above zero",
        "source": "",
    },
]
FINDINGS = [
    {
        "claim": "search-reaches-the-gradient",
        "holds": False,
        "effect": -0.061,
        "ci": [-0.09, -0.03],
        "p": 0.0078,
        "n": 8,
        "words": "0.41 (eggroll) against 0.47 (adamw)",
        "wins": 1,
    },
    {
        "claim": "averaging-helps",
        "holds": True,
        "effect": 0.12,
        "ci": [0.08, 0.17],
        "p": 0.0078,
        "n": 8,
        "words": "0.41 (eggroll) against 0.29 (replicator)",
        "wins": 8,
    },
    {
        "claim": "forgets-less",
        "holds": True,
        "effect": 3.4,
        "ci": [1.1, 5.2],
        "p": 0.016,
        "n": 8,
        "words": "3.4 points less are lost",
    },
]
PROVENANCE = {
    "started": "2026-01-05T10:00:00+00:00",
    "argv": ["evolora", "study", "run", "toy", "--out", "a folder"],
    "python": "3.11.7",
    "memory_bytes": 16_500_000_000,
    "git": {"commit": "0834339", "changed": False},
}


def cell(place, arm, seed, points=24):
    """Later arms are worse, each seed has its own x."""
    draw = random.Random(100 * place + seed)
    level = 0.48 - 0.06 * place + draw.gauss(0, 0.02)
    xs = [4e12 * (step + draw.random() / 2) for step in range(points)]
    return {
        "arm": arm,
        "seed": seed,
        "validation": level + draw.gauss(0, 0.01),
        "reward": level,
        "forgotten": 0.11 - 0.02 * place + draw.gauss(0, 0.01),
        "norm": 3.0 + place + draw.gauss(0, 0.3),
        "curves": {
            "reward": [[x, level * (1 - math.exp(-x / 2e13)) + draw.gauss(0, 0.008)] for x in xs],
            "ess": [[x, 12 - 8 * x / 9e13 + place + draw.gauss(0, 0.3)] for x in xs],
        },
        "ledger": {
            "forward_flops": 96e12 + 1e12 * place,
            "backward_flops": 0 if place else 3e13,
            "tokens": 120_000 + seed,
            "evaluations": 4096,
            "seconds": 91.5 + place,
        },
        "kept": {"path": ["nested", 1]},
    }


def make_record(arms=ARMS, seeds=range(20, 28), **changes):
    """A record of these arms and seeds; ``changes`` replace its parts, None takes one out."""
    record = {
        "study": "toy",
        "preset": "small",
        "plan": {
            "study": "toy",
            "revision": 2,
            "preset": "small",
            "claims": CLAIMS,
            "arms": {
                arm: {"options": {"method": arm}, "grid": [{"lr": lr} for lr in (0.1, 0.3, 1.0)]}
                for arm in arms
            },
            "seeds": list(seeds),
            "tuning": [100, 101],
            "settings": {"forward_flops": 96_000_000_000_000, "task": "continents", "batch": 32},
            "digest": "3f9c2a71d0e54b88",
        },
        "chosen": {arm: {"lr": 0.3} for arm in arms},
        "cells": [cell(place, arm, seed) for seed in seeds for place, arm in enumerate(arms)],
        "findings": FINDINGS,
        "measures": MEASURES,
        "provenance": PROVENANCE,
    }
    return {key: value for key, value in (record | changes).items() if value is not None}


def write_study(root, record=None, **changes):
    """Writes the folder of a study; a record given is taken as it is."""
    folder = root / "toy-small"
    folder.mkdir(exist_ok=True)
    (folder / "record.json").write_text(json.dumps(make_record(**changes) if record is None else record))
    return folder
