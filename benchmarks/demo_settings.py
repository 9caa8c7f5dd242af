"""How the demonstration's settings were chosen: on its training and validation prompts, never on the test.

    python benchmarks/demo_settings.py          writes results/demo_settings.json; half an hour on two cores

Each setting runs once with seed 0; its score is the share of right answers (teacher-forced) on the training
and validation prompts together. One seed ranks settings roughly; it proves nothing about their order.
"""

import json
import time
from pathlib import Path

import evolora as ev
from evolora.runs.atomic import write_atomically
from evolora.runs.provenance import collect

OUT = Path(__file__).parents[1] / "results" / "demo_settings.json"
SETTINGS = [
    {"layers": "top:4", "population": 32, "sigma": 0.03, "lr": 1.0},
    {"layers": "top:4", "population": 32, "sigma": 0.02, "lr": 1.0},
    {"layers": "top:4", "population": 16, "sigma": 0.02, "lr": 1.0},
    {"layers": "top:4", "population": 32, "sigma": 0.03, "lr": 0.1},
    {"layers": "top:8", "population": 16, "sigma": 0.02, "lr": 1.0},
    {"layers": "top:8", "population": 16, "sigma": 0.04, "lr": 1.0},
    {"layers": "top:8", "population": 32, "sigma": 0.02, "lr": 1.0},
]
STEPS = 15


def measure(base: ev.Base, layers: str, **options: float) -> dict[str, object]:
    task, engine = ev.load_task("demo", seed=0), ev.Engine(base)
    problem = ev.Problem(
        engine, task, ev.load_reward("exact"), 32, 0, template=base.modules("all-linear", layers)
    )
    method = ev.make_method("eggroll", **options)
    examples = task.train + task.validation
    prompts, answers = [str(e.prompt) for e in examples], [e.answer for e in examples]

    def share(members: object) -> float:
        return engine.score(members, prompts, answers, stop=task.stop).exact.float().mean().item()

    state, began, curve = method.init(problem.template, 0), time.perf_counter(), [share(None)]
    for step in range(STEPS):
        rewards = problem.evaluate(method.ask(state), step)
        state, _ = method.tell(state, rewards.values, (step + 1) / STEPS)
        if (step + 1) % 5 == 0:
            curve.append(share(method.mean(state)))
    ranks = {str(rank): share(method.adapter(state, rank=rank)) for rank in (16, 32, 64, 128)}
    return {"curve": curve, "exported_at_rank": ranks, "seconds": time.perf_counter() - began}


def main() -> None:
    OUT.parent.mkdir(exist_ok=True)
    base, rows = ev.load_base("smollm2-135m"), []
    for setting in SETTINGS:
        rows.append({"setting": setting, **measure(base, **setting)})
        print(rows[-1], flush=True)
        record = {"study": "demo_settings", "steps": STEPS, "seed": 0, "rows": rows, "provenance": collect()}
        write_atomically(OUT, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
