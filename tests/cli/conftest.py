import json
import os
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

    before = dict(os.environ)
    yield invoke
    for name in os.environ.keys() - before.keys():  # the command silences libraries through the environment
        del os.environ[name]


@dataclass
class Adaptation:
    """Stands where evolora.job does: records what it was called with."""

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
    module = types.ModuleType("evolora.job")
    module.carry_out, module.demo_config = fake.adapt, fake.demo_config
    monkeypatch.setitem(sys.modules, "evolora.job", module)
    return fake


@pytest.fixture
def only_object():
    def parse(text):
        assert text.count("\n") == 1
        assert text.endswith("}\n")
        return json.loads(text)

    return parse


@pytest.fixture
def make_adapter_folder(tmp_path):
    """Writes an adapter for the model of ``model_folder``: ``make(name, size)``; size 0 changes nothing."""

    def make(name, size, width=16):
        import torch

        from evolora.adapters import Adapter, Factors

        generator = torch.Generator().manual_seed(1)
        modules = {
            f"model.layers.{layer}.mlp.gate_proj": Factors(
                torch.randn(2, width, generator=generator), size * torch.randn(24, 2, generator=generator)
            )
            for layer in (0, 1)
        }
        return Adapter(modules, name=name).save(tmp_path / name)

    return make
