import json
import sys
import types
from dataclasses import dataclass, field

import pytest
from typer.testing import CliRunner

from evolora.cli.app import app
from evolora.config import AdaptConfig

RESULT = {
    "base": {"accuracy": 0.1, "ci": [0.05, 0.15], "n": 120, "families": {}},
    "adapted": {"accuracy": 0.4, "ci": [0.3, 0.5], "n": 120, "families": {}},
    "difference": {"value": 0.3, "ci": [0.2, 0.4], "p": 0.001},
    "adapter": "runs/x/adapter",
    "report": "runs/x/report.html",
    "ledger": {"evaluations": 10, "seconds": float("nan")},
    "samples": [
        {
            "prompt": f"Q{i}:\nA:",
            "answer": " a",
            "base": " b",
            "adapted": " a",
            "base_correct": i == 3,
            "adapted_correct": i != 3,
        }
        for i in range(5)
    ],
    "stopped": "budget: steps",
    "method": "eggroll",
    "task": "toy",
    "reward": "exact",
    "seed": 0,
    "steps": 4,
}


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVOLORA_DEBUG", raising=False)

    def invoke(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="evolora")

    return invoke


@dataclass
class Adaptation:
    """Stands where evolora.adapt will: records what it was called with."""

    configs: list[AdaptConfig] = field(default_factory=list)
    raises: BaseException | None = None
    prints: str = ""

    def adapt(self, config, progress=None):
        self.configs.append(config)
        progress.start(4, "steps")
        for step in range(1, 5):
            progress.update(step, {"reward_mean": 0.25 * step, "reward_best": 1.0})
        if self.prints:
            print(self.prints)
        if self.raises is not None:
            raise self.raises
        return RESULT

    def demo_config(self, seed, out):
        return AdaptConfig(task="toy", seed=seed, out=out)


@pytest.fixture
def adaptation(monkeypatch):
    fake = Adaptation()
    module = types.ModuleType("evolora.adapt")
    module.adapt, module.demo_config = fake.adapt, fake.demo_config
    monkeypatch.setitem(sys.modules, "evolora.adapt", module)
    return fake


@pytest.fixture
def only_object():
    def parse(text):
        assert text.count("\n") == 1
        assert text.endswith("}\n")
        return json.loads(text)

    return parse
