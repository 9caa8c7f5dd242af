from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig
from safetensors.torch import load_file, save

from evolora.adapters import Adapter, Factors, read_adapter, write_adapter
from evolora.adapters.preflight import preflight
from evolora.errors import AdapterError

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
L0 = "base_model.model.layers.0"
A0, B0 = f"{L0}.q.lora_A.weight", f"{L0}.q.lora_B.weight"


def refusal(folder, base=None):
    """The one line that both the preflight and the reader say."""
    with pytest.raises(AdapterError) as early:
        preflight(folder, base)
    with pytest.raises(AdapterError) as late:
        read_adapter(folder, base)
    assert str(early.value) == str(late.value)
    assert "\n" not in str(early.value)
    assert early.value.mend
    return str(early.value)


UNSUPPORTED = {
    "lora_bias": True,
    "bias": "lora_only",
    "modules_to_save": ["lm_head"],
    "trainable_token_indices": [1, 2],
    "target_parameters": ["mlp.experts.gate_up_proj"],
    "layer_replication": [[0, 2], [1, 3]],
    "use_qalora": True,
    "alora_invocation_tokens": [5, 6],
    "arrow_config": {"top_k": 2},
    "megatron_config": {"hidden": 3},
    "velora_config": {"num_groups": 4},
    "monteclora_config": {"num_samples": 2},
    "kasa_config": {"beta": 0.1},
    "use_bdlora": {"nblocks": 2},
    "ensure_weight_tying": True,
}


@pytest.mark.parametrize("field", UNSUPPORTED)
def test_a_property_that_changes_the_function_is_refused_by_name(field, make_folder):
    assert f"{field} = " in refusal(make_folder(**{field: UNSUPPORTED[field]}))


def test_every_field_of_the_installed_peft_is_read_harmless_or_refused_by_name(make_folder):
    from evolora.adapters.peft_fields import _HARMLESS, _READ

    for field in sorted(LoraConfig.__dataclass_fields__.keys() - _READ - _HARMLESS):
        assert f"{field} = " in refusal(make_folder(field, **{field: ["something"]}))


@pytest.mark.parametrize(
    "init",
    ["pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga", "mica", "PiSSA", "unheard_of", 2],
)
def test_an_initialisation_that_alters_the_base_is_refused(init, make_folder):
    assert "init_lora_weights" in refusal(make_folder(init_lora_weights=init))


@pytest.mark.parametrize("init", [True, False, None, "gaussian", "orthogonal", "eva"])
def test_an_initialisation_that_leaves_the_base_alone_is_fine(init, make_folder):
    assert read_adapter(make_folder(init_lora_weights=init)).rank == 2


def test_an_unknown_field_is_refused_by_name_and_noted_where_it_is_off(make_folder):
    assert "quantum_lora = true" in refusal(make_folder("on", quantum_lora=True))
    assert "quantum_lora" in preflight(make_folder("off", quantum_lora=None)).warnings[0]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("PROMPT_TUNING", "prompt tuning"),
        ("P_TUNING", "prompt tuning"),
        ("PREFIX_TUNING", "prefix tuning"),
        ("IA3", "IA3"),
        ("ADALORA", "ADALORA"),
        ("LOHA", "LOHA"),
        (None, "None"),
    ],
)
def test_other_kinds_of_adapter_are_refused_by_name(kind, said, make_folder):
    assert said in refusal(make_folder(peft_type=kind))


def test_mlx_configs_and_configs_without_a_type_are_told_apart(make_folder):
    folder = make_folder()
    (folder / "adapter_config.json").write_text(json.dumps({"r": 2, "target_modules": ["q"]}))
    assert "names no peft_type" in refusal(folder)
    mlx = {"fine_tune_type": "lora", "lora_parameters": {"rank": 8, "scale": 20.0}, "num_layers": 16}
    (folder / "adapter_config.json").write_text(json.dumps(mlx))
    assert "MLX" in refusal(folder)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("r", 0),
        ("r", "8"),
        ("r", True),
        ("r", 2.0),
        ("lora_alpha", None),
        ("lora_alpha", float("inf")),
        ("lora_alpha", "16"),
        ("lora_alpha", 10**400),
        ("r", 10**400),
        ("alpha_pattern", {"q": -(10**400)}),
        ("rank_pattern", {"q": 0}),
        ("rank_pattern", ["q"]),
        ("rank_pattern", {"(": 2}),
        ("alpha_pattern", {"q": "2"}),
        ("use_rslora", "false"),
        ("use_dora", 1),
        ("target_modules", None),
        ("target_modules", []),
        ("target_modules", [3]),
        ("target_modules", "all-linear"),
        ("target_modules", "(q"),
        ("exclude_modules", 3),
        ("exclude_modules", "[q"),
        ("layers_to_transform", "1"),
        ("layers_pattern", "layers"),
        ("task_type", "NO_SUCH_TASK"),
    ],
)
def test_values_that_peft_could_not_use_are_refused(field, value, make_folder):
    message = refusal(make_folder(**{field: value}))
    assert (
        field in message or str(value) in message or "NO_SUCH_TASK" in message or next(iter(value)) in message
    )


def test_a_target_pattern_with_layer_indices_is_refused_as_in_peft(make_folder):
    assert "layers_to_transform" in refusal(make_folder(target_modules=".*q", layers_to_transform=[0]))


@pytest.mark.parametrize(
    ("tensors", "drop", "said"),
    [
        ({}, [B0], "layers.0.q has no lora_B.weight"),
        ({}, [A0], "layers.0.q has no lora_A.weight"),
        ({f"{L0}.k.lora_A.weight": (2, 6), f"{L0}.k.lora_B.weight": (5, 2)}, [], "0.k is not targeted"),
        ({"base_model.model.layers.0.q.lora_B.bias": (5,)}, [], "lora_bias"),
        ({"base_model.model.layers.0.q.base_layer.bias": (5,)}, [], "base_layer.bias"),
        ({"base_model.model.lm_head.weight": (9, 5)}, [], "base_model.model.lm_head.weight"),
        ({f"{L0}.token_adapter.trainable_tokens_delta": (9, 5)}, [], "trainable_token_indices"),
        ({"base_model.model.layers.0.q.lora_A.default.weight": (2, 6)}, [], "an adapter's name"),
        ({"layers.0.q.lora_A.weight": (2, 6)}, [], "does not start with"),
        ({A0: (3, 6), B0: (5, 3)}, [], "says rank 2"),
        ({A0: (2, 6), B0: (5, 3)}, [], "says rank 2"),
        ({A0: (2, 6, 3, 3), B0: (5, 2, 1, 1)}, [], "only matrices"),
        ({A0: (0,)}, [], "only matrices"),
        ({"base_model.model.layers.0.q.lora_magnitude_vector": (5,)}, [], "without use_dora"),
        ({"base_model.model.layers.0.q.lora_embedding_A": (2, 9)}, [], "lora_embedding_B"),
        ({f"{L0}.q.lora_embedding_A": (2, 9), f"{L0}.q.lora_embedding_B": (5, 2)}, [], "and of a linear"),
        ({f"{L0}.q.base_layer.weight": (5, 7)}, [], "stores a base weight of shape (5, 7)"),
    ],
)  # fmt: skip
def test_a_tensor_that_peft_would_drop_or_misread_is_named(tensors, drop, said, make_folder):
    folder = make_folder(tensors={key: torch.ones(shape) for key, shape in tensors.items()}, drop=drop)
    assert said in refusal(folder)


def test_dora_needs_one_magnitude_of_the_right_size_for_each_module(make_folder):
    def magnitudes(size, **more):
        return {
            f"base_model.model.layers.{i}.q.lora_magnitude_vector": torch.ones(size) for i in (0, 1)
        } | more

    assert "has no lora_magnitude_vector" in refusal(make_folder("none", use_dora=True))
    assert "magnitude of shape (6,)" in refusal(make_folder("size", magnitudes(6), use_dora=True))
    twice = {"base_model.model.layers.0.q.lora_magnitude_vector.weight": torch.ones(5)}
    assert "say the same thing" in refusal(make_folder("twice", magnitudes(5, **twice), use_dora=True))
    embedding = {
        "base_model.model.emb.lora_embedding_A": torch.ones(2, 9),
        "base_model.model.emb.lora_embedding_B": torch.ones(5, 2),
        "base_model.model.emb.lora_magnitude_vector": torch.ones(5),
    }
    folder = make_folder("emb", magnitudes(5, **embedding), use_dora=True, target_modules=["q", "emb"])
    assert "DoRA on an embedding" in refusal(folder)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_named_when_read(bad, make_folder):
    value = torch.ones(2, 6)
    value[1, 3] = bad
    folder = make_folder(tensors={A0: value})
    assert preflight(folder).ranks["layers.0.q"] == 2
    with pytest.raises(AdapterError, match=r"layers\.0\.q\.lora_A\.weight holds"):
        read_adapter(folder)


def test_a_double_that_overflows_float32_is_not_read_as_infinity(make_folder):
    with pytest.raises(AdapterError, match="holds infinite values"):
        read_adapter(make_folder(tensors={A0: torch.full((2, 6), 1e300, dtype=torch.float64)}))


def test_integers_are_not_weights(make_folder):
    assert "stored as I8" in refusal(make_folder(tensors={A0: torch.ones(2, 6, dtype=torch.int8)}))


WEIGHTS, PICKLE = "adapter_model.safetensors", "adapter_model.bin"
CONFIG, RECORD = "adapter_config.json", "evolora.json"
DAMAGE = {
    "lfs weights": (WEIGHTS, LFS, "git lfs pull"),
    "lfs config": (CONFIG, LFS, "git lfs pull"),
    "empty weights": (WEIGHTS, b"", "is empty"),
    "header cut": (WEIGHTS, b"\x10\x00", "truncated or corrupt"),
    "values cut": (WEIGHTS, 0.9, "truncated or corrupt"),
    "web page": (WEIGHTS, b"<html>Not found" * 20, "truncated or corrupt"),
    "no tensors": (WEIGHTS, save({}), "holds no tensors"),
    "no weights": (WEIGHTS, None, "holds neither"),
    "no config": (CONFIG, None, "holds no adapter_config.json"),
    "config cut": (CONFIG, 0.5, "not valid JSON"),
    "config empty": (CONFIG, b"", "not valid JSON"),
    "config bytes": (CONFIG, b"\xff\xfe\x00", "not valid JSON"),
    "config deep": (CONFIG, b"[" * 100_000, "not valid JSON"),
    "config list": (CONFIG, b"[1]", "not a JSON object"),
    "record cut": (RECORD, b'{"name"', "only the provenance is lost"),
    "record list": (RECORD, b"[]", "not a provenance record"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_told_in_one_line(damage, make_folder):
    name, data, said = DAMAGE[damage]
    path = make_folder() / name
    if isinstance(data, float):
        data = path.read_bytes()[: int(data * path.stat().st_size)]
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)
    folder = path.parent
    assert said in refusal(folder)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """The bytes of one sound adapter, as safetensors, as a pickle, and its config."""
    folder = write_adapter(
        Adapter({"layers.0.q": linear(), "q": linear()}), tmp_path_factory.mktemp("sound") / "a"
    )
    torch.save(load_file(folder / WEIGHTS), folder / PICKLE)
    return {name: (folder / name).read_bytes() for name in (WEIGHTS, PICKLE, CONFIG)}


@given(
    name=st.sampled_from([WEIGHTS, PICKLE, CONFIG]),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4),
    keep=st.one_of(st.just(1.0), st.floats(0, 1)),
)
@settings(max_examples=300, deadline=None)
def test_whatever_bytes_are_damaged_nothing_but_an_adapter_error_comes_out(name, flips, keep, sound):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        data = bytearray(sound[name][: int(keep * len(sound[name]))])
        for where, value in flips:
            if data:
                data[int(where * len(data))] = value
        (folder / CONFIG).write_bytes(sound[CONFIG])
        if name == CONFIG:
            (folder / WEIGHTS).write_bytes(sound[WEIGHTS])
        (folder / name).write_bytes(data)
        try:
            adapter = read_adapter(folder)
        except AdapterError:
            return
        for factors in adapter.modules.values():
            assert torch.isfinite(factors.a).all()
            assert torch.isfinite(factors.b).all()


def test_a_model_folder_is_not_taken_for_an_adapter(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert "is a model, not an adapter" in refusal(tmp_path)


def test_wrong_paths_and_hub_ids_are_told_apart(tmp_path, make_folder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "hf download someone/adapter" in refusal("someone/adapter")
    assert "hf download" not in refusal(tmp_path / "nowhere")
    assert "is a file" in refusal(make_folder() / "adapter_model.safetensors")
    assert "cannot be read" in refusal(tmp_path / ("x" * 400))


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def test_a_pickle_never_runs_code(make_folder, tmp_path):
    folder = make_folder()
    (folder / "adapter_model.safetensors").unlink()
    torch.save({A0: Bomb(tmp_path / "boom")}, folder / "adapter_model.bin")
    assert "more than tensors" in refusal(folder)
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "boom")))
    assert "more than tensors" in refusal(folder)
    torch.save([torch.ones(2)], folder / "adapter_model.bin")
    assert "not a table of tensors" in refusal(folder)
    assert not (tmp_path / "boom").exists()


class Strict:
    model = None

    def check_specs(self, specs, base_name, base_fingerprint, where):
        raise AdapterError(
            f"{sorted(specs)} {base_name} {base_fingerprint}", where=where, mend="another base"
        )


def test_the_base_judges_modules_shapes_name_and_fingerprint(make_folder):
    folder = make_folder(base_model_name_or_path="org/model")
    (folder / "evolora.json").write_text(json.dumps({"provenance": {"base_fingerprint": "abcd"}}))
    assert "['layers.0.q', 'layers.1.q'] org/model abcd" in refusal(folder, Strict())


# Writing


def linear(rank=2, magnitude=None, kind="linear", scale=1.0):
    return Factors(torch.ones(rank, 6), torch.ones(5, rank), scale, magnitude, kind)


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ({}, "adapts no modules"),
        ({"a": linear(magnitude=torch.ones(5)), "b": linear()}, "b has none"),
        ({"a": linear(magnitude=torch.ones(5), kind="embedding")}, "DoRA on an embedding"),
        ({"a": linear(scale=float("nan"))}, "a.lora_B.weight is not finite"),
        ({"a": linear(), "b": linear(magnitude=None, scale=1e39)}, "b.lora_B.weight is not finite"),
    ],
)
def test_what_peft_cannot_express_is_not_written(modules, said, tmp_path):
    with pytest.raises(AdapterError, match=said):
        write_adapter(Adapter(modules), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_provenance_that_json_cannot_hold_is_named_and_nothing_is_left(tmp_path):
    with pytest.raises(AdapterError, match="provenance"):
        write_adapter(Adapter({"a": linear()}, provenance={"x": object()}), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_target_is_replaced_only_on_request(tmp_path):
    write_adapter(Adapter({"a": linear(1)}), tmp_path / "out")
    with pytest.raises(AdapterError, match="already exists"):
        write_adapter(Adapter({"a": linear(2)}), tmp_path / "out")
    assert read_adapter(tmp_path / "out").rank == 1
    write_adapter(Adapter({"a": linear(2)}), tmp_path / "out", overwrite=True)
    assert read_adapter(tmp_path / "out").rank == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("content", ["thesis.txt", "config.json", "checkpoints/x"])
def test_overwriting_never_removes_what_is_not_an_adapter(content, tmp_path):
    for start in ({}, {"a": linear()}):
        target = tmp_path / f"out{len(start)}"
        if start:
            write_adapter(Adapter(start), target)
        (target / content).parent.mkdir(parents=True, exist_ok=True)
        (target / content).write_text("precious")
        before = sorted(target.rglob("*"))
        with pytest.raises(AdapterError, match=f"holds {content.split('/')[0]}"):
            write_adapter(Adapter({"a": linear()}), target, overwrite=True)
        assert sorted(target.rglob("*")) == before


def test_files_and_links_are_never_replaced(tmp_path):
    (tmp_path / "file").write_text("precious")
    write_adapter(Adapter({"a": linear()}), tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for name in ("file", "link"):
        with pytest.raises(AdapterError, match="is not a folder"):
            write_adapter(Adapter({"a": linear()}), tmp_path / name, overwrite=True)
    assert (tmp_path / "file").read_text() == "precious"


def test_a_target_that_cannot_be_written_is_an_adapter_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AdapterError, match="cannot be written"):
        write_adapter(Adapter({"a": linear()}), tmp_path / "file" / "out")


def test_a_failure_half_way_leaves_the_old_adapter_and_nothing_else(tmp_path, monkeypatch):
    write_adapter(Adapter({"a": linear(1)}), tmp_path / "out")
    rename, calls = os.rename, []

    def fail_second(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail_second)
    with pytest.raises(AdapterError, match="No space left"):
        write_adapter(Adapter({"a": linear(2)}), tmp_path / "out", overwrite=True)
    monkeypatch.undo()
    assert read_adapter(tmp_path / "out").rank == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_parents_are_made_and_permissions_are_the_usual_ones(tmp_path):
    folder = write_adapter(Adapter({"a": linear()}), tmp_path / "deep" / "er" / "out")
    usual = tmp_path / "usual"
    usual.mkdir()
    assert folder.stat().st_mode == usual.stat().st_mode


def test_importing_the_room_loads_nothing_heavy():
    code = (
        "import evolora.adapters, evolora.adapters.geometry, sys;"
        "print(*(m for m in ('torch', 'peft', 'transformers', 'scipy', 'safetensors') if m in sys.modules))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "\n"
    )
