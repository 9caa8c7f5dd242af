from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
import torch

from evolora.adapters import ModuleSpec, read_adapter
from evolora.adapters.preflight import preflight
from evolora.errors import AdapterError


def test_a_preflight_says_what_reading_would_find(make_folder):
    folder = make_folder(
        rank_pattern={}, alpha_pattern={"layers.1.q": 3}, base_model_name_or_path="org/model"
    )
    found, adapter = preflight(folder), read_adapter(folder)
    assert found.specs == adapter.specs
    assert (
        found.ranks
        == {name: f.rank for name, f in adapter.modules.items()}
        == {"layers.0.q": 2, "layers.1.q": 2}
    )
    assert (
        found.scales
        == {name: f.scale for name, f in adapter.modules.items()}
        == {"layers.0.q": 2, "layers.1.q": 1.5}
    )
    assert found.parameters == adapter.parameters == 2 * (2 * 6 + 5 * 2)
    assert found.size == (folder / "adapter_model.safetensors").stat().st_size
    assert (found.peft_type, found.dora, found.base, found.name) == ("LORA", False, "org/model", "plain")


def test_a_preflight_is_frozen(make_folder):
    with pytest.raises(AttributeError):
        preflight(make_folder()).dora = True


def sparse_adapter(folder, width=1 << 30):
    """An adapter of 16 GiB that takes no room on disk: its values are a hole in the file."""
    shapes = {
        "base_model.model.layers.0.q.lora_A.weight": [2, width],
        "base_model.model.layers.0.q.lora_B.weight": [width, 2],
    }
    header, start = {}, 0
    for key, shape in shapes.items():
        end = start + 4 * shape[0] * shape[1]
        header[key], start = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}, end
    text = json.dumps(header).encode()
    folder.mkdir()
    with (folder / "adapter_model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + start)
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def bytes_read():
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts what the kernel reads")
def test_the_preflight_of_a_huge_file_neither_reads_nor_holds_it(make_folder, tmp_path):
    preflight(make_folder("warm"))
    folder = sparse_adapter(tmp_path / "huge")
    read, held = bytes_read(), resident()
    found = preflight(folder)
    assert found.specs == {"layers.0.q": ModuleSpec(1 << 30, 1 << 30)}
    assert found.size > 1 << 34
    assert bytes_read() - read < 1 << 16
    assert resident() - held < 1 << 23


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts what the kernel reads")
def test_a_pickle_is_not_read_either(make_folder):
    folder = make_folder()
    (folder / "adapter_model.safetensors").unlink()
    wide = 1 << 22
    tensors = {
        "base_model.model.layers.0.q.lora_A.weight": torch.full((2, wide), float("nan")),
        "base_model.model.layers.0.q.lora_B.weight": torch.ones(5, 2),
    }
    torch.save(tensors, folder / "adapter_model.bin")
    preflight(folder)
    read, held = bytes_read(), resident()
    assert preflight(folder).specs["layers.0.q"] == ModuleSpec(5, wide)
    assert bytes_read() - read < 1 << 18
    assert resident() - held < 1 << 23
    with pytest.raises(AdapterError, match="holds NaN"):
        read_adapter(folder)
