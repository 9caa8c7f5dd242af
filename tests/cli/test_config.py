from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from evolora.config import DEFAULT_STEPS, AdaptConfig
from evolora.errors import ConfigError


def refused(**values):
    with pytest.raises(ConfigError) as caught:
        AdaptConfig.make({"task": "toy"} | values)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_a_budget_there_is_one():
    assert AdaptConfig(task="toy").budgets() == {"steps": DEFAULT_STEPS}
    assert AdaptConfig(task="toy", budget_seconds=5).budgets() == {"seconds": 5.0}


def test_sizes_are_those_that_are_set():
    assert AdaptConfig(task="toy", test=7).sizes() == {"test": 7}


def test_an_unknown_name_gets_the_nearest_known_one():
    assert "did you mean 'budget_steps'?" in refused(budget_step=3)
    assert "known are" in refused(zzzzzz=3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch", "two"),
        ("batch", 0),
        ("batch", True),
        ("batch", 1.5),
        ("batch", None),
        ("seed", -1),
        ("budget_flops", "many"),
        ("dtype", "int8"),
        ("model", 3),
        ("options", [1]),
        ("layers", {"a": 1}),
        ("resume", "perhaps"),
        ("threads", False),
    ],
)
def test_a_wrong_value_is_refused_by_name(name, value):
    assert refused(**{name: value}).startswith(f"{name}: ")


def test_a_missing_task_is_named():
    with pytest.raises(ConfigError, match=r"^task is missing"):
        AdaptConfig.make({})


def test_resume_and_overwrite_exclude_each_other():
    assert "exclude each other" in refused(resume=True, overwrite=True)


def test_text_is_read_as_the_number_it_names():
    config = AdaptConfig.make({"task": "toy", "batch": "16", "budget_flops": "1e12", "out": "runs/a"})
    assert (config.batch, config.budget_flops, config.out) == (16, 1e12, Path("runs/a"))


@pytest.mark.parametrize(
    ("given_targets", "targets"),
    [
        ("all-linear", "all-linear"),
        ("mlp", "mlp"),
        ("q_proj", ["q_proj"]),
        ("q_proj, v_proj", ["q_proj", "v_proj"]),
        (["q_proj"], ["q_proj"]),
        (r".*\.(q|v)_proj", r".*\.(q|v)_proj"),
    ],
)
def test_targets_are_a_preset_names_or_a_regex(given_targets, targets):
    assert AdaptConfig(task="toy", targets=given_targets).targets == targets


@pytest.mark.parametrize(
    ("text", "layers"), [("top:8", "top:8"), ("0-5", "0-5"), ("3", [3]), (3, [3]), ("0, 3,7", [0, 3, 7])]
)
def test_layers_are_a_range_or_numbers(text, layers):
    assert AdaptConfig(task="toy", layers=text).layers == layers


@given(
    batch=st.integers(1, 10**6),
    flops=st.floats(1, 1e30),
    seed=st.integers(0, 2**62),
    options=st.dictionaries(
        st.from_regex("[a-z]{1,8}", fullmatch=True),
        st.floats(allow_nan=False) | st.integers() | st.booleans() | st.text(),
    ),
    targets=st.sampled_from(["all-linear", "q_proj,v_proj", ".*q"]),
    layers=st.sampled_from([None, "top:2", "0,1", 4]),
)
def test_what_is_recorded_reads_back_as_the_same_config(batch, flops, seed, options, targets, layers):
    config = AdaptConfig(
        task="toy",
        batch=batch,
        budget_flops=flops,
        seed=seed,
        options=options,
        targets=targets,
        layers=layers,
    )
    text = yaml.safe_dump(config.record())
    assert AdaptConfig.make(yaml.safe_load(text)) == config


def test_a_record_leaves_out_what_concerns_one_call(tmp_path):
    record = AdaptConfig(task="toy", resume=True).record()
    assert not {"resume", "overwrite"} & set(record)


def test_a_file_is_read_and_keyword_arguments_win(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("task: toy\nbudget-steps: 3\nbatch: 8\n")
    config = AdaptConfig.read(file, batch=4)
    assert (config.budget_steps, config.batch) == (3, 4)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"task: [", "c.yaml:"),
        (b"- a\n- b\n", "not a mapping"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"task: toy\nbatch: lots\n", "c.yaml: batch: "),
        (b"task: toy\nbach: 3\n", "did you mean 'batch'?"),
        (b"a: !!python/object/apply:os.system [true]\n", "not YAML"),
        (b"", "task is missing"),
    ],
)
def test_a_bad_file_is_named_in_one_line(tmp_path, content, part):
    file = tmp_path / "c.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        AdaptConfig.read(file)
    assert str(file) in str(caught.value)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_absent_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        AdaptConfig.read(tmp_path / "none.yaml")


@pytest.mark.parametrize("text", ["a: " + "[" * 3000 + "]" * 3000, "seed: " + "9" * 5000])
def test_yaml_that_python_cannot_hold_is_refused(tmp_path, text):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match="not YAML"):
        AdaptConfig.read(tmp_path / "c.yaml")
