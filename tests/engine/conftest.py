import pytest
import torch

from evolora.adapters import Adapter, Factors
from evolora.engine import Base, Engine


@pytest.fixture
def base(tiny_model, char_tokenizer):
    return Base(tiny_model, char_tokenizer, "tiny")


@pytest.fixture
def engine(base):
    return Engine(base)


@pytest.fixture
def make_adapter(base):
    """Random adapters of a base: any rank, targets, layers, DoRA or not; large enough to change every logit."""

    def make(seed, rank=2, targets="all-linear", layers=None, dora=False, size=0.3):
        generator = torch.Generator().manual_seed(seed)
        modules = {}
        for path, spec in base.modules(targets, layers).items():
            a = torch.randn(rank, spec.d_in, generator=generator) * spec.d_in**-0.5
            b = torch.randn(spec.d_out, rank, generator=generator) * size
            magnitude = torch.rand(spec.d_out, generator=generator) + 0.2 if dora else None
            modules[path] = Factors(a, b, 0.5, magnitude, spec.kind)
        return Adapter(modules, name=f"random-{seed}")

    return make
