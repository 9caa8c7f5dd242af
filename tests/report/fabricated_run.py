import json
import math

import yaml

CONFIG = {
    "model": "smollm2-135m",
    "task": "continents",
    "reward": "exact",
    "method": "eggroll",
    "options": {"sigma": 0.03, "lr": 0.1, "rank": 1, "members": 32},
    "targets": "all-linear",
    "layers": "top:8",
    "batch": 32,
    "budget_steps": 30,
    "seed": 7,
    "out": "runs/continents",
}


def entry(step, steps=30):
    mean = 0.07 + 0.32 * (1 - math.exp(-step / 10)) + 0.02 * math.sin(2.1 * step)
    return {
        "step": step,
        "reward_mean": mean,
        "reward_best": mean + 0.1 + 0.03 * math.cos(step),
        "reward_std": 0.05 + 0.01 * math.sin(step),
        "failed": 0,
        "update_norm": 0.4 * (1 - step / (steps + 1)),
        "delta_norm": 0.35 * math.sqrt(step),
        "seconds": 8.2 * step,
        "forward_flops": int(3.1e12 * step),
        "evaluations": 1024 * step,
    }


def part(accuracy, families):
    return {
        "accuracy": accuracy,
        "ci": [accuracy - 0.06, accuracy + 0.08],
        "n": 150,
        "families": {
            name: {"accuracy": value, "ci": [max(0, value - 0.1), min(1, value + 0.12)], "n": 50}
            for name, value in families.items()
        },
    }


SAMPLES = [
    ("Q: On which continent is Kenya?\nA:", " Africa", " The continent of Africa", " Africa", False, True),
    ("Q: On which continent is Peru?\nA:", " South America", " South America", " South America", True, True),
    ("Q: On which continent is Laos?\nA:", " Asia", "", " Europe", False, False),
    ("Q: On which continent is Malta?\nA:", " Europe", " Europe", " Africa", True, False),
    (
        "Q: On which continent is Chad?\nA:",
        " Africa",
        " Chad is a landlocked country in",
        " Africa",
        False,
        True,
    ),
]
RESULT = {
    "base": part(11 / 150, {"Africa": 0.1, "Asia": 0.04, "Europe": 0.08}),
    "adapted": part(62 / 150, {"Africa": 0.52, "Asia": 0.36, "Europe": 0.36}),
    "difference": {"value": 0.34, "ci": [0.26, 0.42], "p": 0.0002},
    "adapter": "runs/continents/adapter",
    "report": "runs/continents/report.html",
    "ledger": {
        "forward_flops": 98_123_456_789_012,
        "backward_flops": 0,
        "prompt_tokens": 1_204_224,
        "generated_tokens": 81_920,
        "evaluations": 31_020,
        "seconds": 252.4,
    },
    "samples": [
        dict(zip(("prompt", "answer", "base", "adapted", "base_correct", "adapted_correct"), s, strict=True))
        for s in SAMPLES
    ],
    "stopped": "steps",
    "method": "eggroll",
    "task": "continents",
    "reward": "exact",
    "seed": 7,
    "steps": 30,
}
RECORD = {
    "status": "done",
    "created": "2026-01-05T10:00:00+00:00",
    "ended": "2026-01-05T10:04:13+00:00",
    "resumed": [],
    "seed": 7,
    "base": {"name": "smollm2-135m", "fingerprint": "3f9c2a71d0e54b88"},
    "data": {"train": "9b1c77e0", "test": "c2d14f9a"},
    "provenance": {
        "started": "2026-01-05T10:00:00+00:00",
        "argv": ["evolora", "adapt", "--task", "a task", "--out", "runs/continents"],
        "python": "3.11.7",
        "platform": "Linux-6.1-x86_64",
        "versions": {"evolora": "0.1.0", "torch": "2.13.0", "transformers": "5.24.0", "peft": "0.21.2"},
        "cpu": {"model": "Xeon", "cores": 2, "usable": 2, "threads": 1},
        "memory_bytes": 16_500_000_000,
        "gpus": [],
        "git": {"commit": "0834339", "changed": False},
    },
}
ADAPTER = {
    "base_model_name_or_path": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "r": 16,
    "rank_pattern": {"q": 24},
}


def write_run(
    root,
    *,
    status="done",
    steps=30,
    journal=None,
    result=RESULT,
    record=RECORD,
    config=CONFIG,
    adapter=ADAPTER,
):
    """Writes a run folder as the contract says; None leaves a part out."""
    folder = root / "continents"
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps({**record, "status": status}))
    journal = [entry(step) for step in range(1, steps + 1)] if journal is None else journal
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in journal))
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    if result is not None:
        (folder / "result.json").write_text(json.dumps(result))
    if adapter is not None:
        (folder / "adapter").mkdir(exist_ok=True)
        (folder / "adapter" / "adapter_config.json").write_text(json.dumps(adapter))
    return folder
