from __future__ import annotations

import json

import pytest


@pytest.fixture
def make_folder(tmp_path):
    """Writes an adapter folder by hand: two modules of rank 2, then whatever a test changes about it."""
    import torch
    from safetensors.torch import save_file

    def make(name="plain", tensors=None, drop=(), **config):
        folder = tmp_path / name
        folder.mkdir()
        generator = torch.Generator().manual_seed(5)
        values = {}
        for module in ("layers.0.q", "layers.1.q"):
            values[f"base_model.model.{module}.lora_A.weight"] = torch.randn(2, 6, generator=generator)
            values[f"base_model.model.{module}.lora_B.weight"] = torch.randn(5, 2, generator=generator)
        values |= tensors or {}
        values = {key: value for key, value in values.items() if key not in drop}
        save_file(values, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q"], **config}
        (folder / "adapter_config.json").write_text(json.dumps(settings))
        return folder

    return make


@pytest.fixture
def make_adapter():
    """Random adapters: shapes and ranks by module name."""
    import torch

    from evolora.adapters import Adapter, Factors

    def make(shapes, seed=0, dora=False, scale=1.0, name="adapter"):
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(*shape, generator=generator)

        return Adapter(
            {
                module: Factors(
                    draw(rank, d_in), draw(d_out, rank), scale, draw(d_out).abs() + 1 if dora else None, kind
                )
                for module, (d_out, d_in, rank, kind) in shapes.items()
            },
            base="some/base",
            name=name,
        )

    return make
