import numpy as np
import pytest
import torch

from evolora.adapters import Adapter, Factors, ModuleSpec
from evolora.adapters.noise import normal
from evolora.engine import Base, Engine


@pytest.fixture
def engine(tiny_llama, char_tokenizer):
    return Engine(Base(tiny_llama, char_tokenizer, "tiny"))


@pytest.fixture
def draw():
    """Counted unit normal tensors: another for each name."""

    def make(*shape, name="x", step=0):
        out = np.empty(shape, np.float32)
        return torch.from_numpy(normal(out, seed=0, step=step, tensor=name, purpose="test"))

    return make


@pytest.fixture
def make_adapter(draw):
    """A LoRA (or DoRA) on modules of some shapes."""

    def make(specs, *, name="random", rank=2, size=0.3, dora=None):
        modules = {}
        for module, spec in specs.items():
            a = draw(rank, spec.d_in, name=f"{name}/{module}/a") / spec.d_in**0.5
            b = size * draw(spec.d_out, rank, name=f"{name}/{module}/b")
            magnitude = None if dora is None else dora[module]
            modules[module] = Factors(a, b, 0.5, magnitude, spec.kind)
        return Adapter(modules, name=name)

    return make


@pytest.fixture
def shapes():
    return {"one": ModuleSpec(6, 10), "two": ModuleSpec(8, 5), "three": ModuleSpec(30, 40)}
