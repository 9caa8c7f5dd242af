"""Twenty-odd kinds of bad input: exit code 2, one line that helps, nothing left behind."""

import json
import os

import pytest
import safetensors.torch
import torch

ROWS = [{"prompt": f"{a}{b}:", "answer": "e"} for a in "abcdefgh" for b in "xyz"]


@pytest.fixture
def place(tmp_path, model_folder, make_adapter_folder, monkeypatch):
    """A working folder with a good task, a good adapter, and what spoils them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    make_adapter_folder("good", 0.5)
    return tmp_path


def spoil(folder, **config):
    """A copy of the good adapter with another config; a value of None removes the key."""
    target = folder / "bad"
    target.mkdir()
    for file in (folder / "good").iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    path = target / "adapter_config.json"
    values = {**json.loads(path.read_text()), **config}
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
    return target


def truncated(folder):
    weights = spoil(folder) / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-200])


def corrupt(folder):
    (spoil(folder) / "adapter_model.safetensors").write_bytes(b"\xff" * 500)


def lfs_pointer(folder):
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    (spoil(folder) / "adapter_model.safetensors").write_text(text)


def nan_weights(folder):
    file = spoil(folder) / "adapter_model.safetensors"
    tensors = safetensors.torch.load_file(file)
    next(iter(tensors.values()))[0, 0] = torch.nan
    safetensors.torch.save_file(tensors, file)


def wrong_base(folder):
    file = spoil(folder) / "adapter_model.safetensors"
    tensors = {
        k: torch.ones(v.shape[0] + (v.shape[0] > 2), v.shape[1])
        for k, v in safetensors.torch.load_file(file).items()
    }
    safetensors.torch.save_file(tensors, file)


def prompt_tuning(folder):
    spoil(folder, peft_type="PROMPT_TUNING")


def mlx(folder):
    target = spoil(folder)
    (target / "adapter_config.json").write_text(
        json.dumps({"fine_tune_type": "lora", "lora_parameters": {"rank": 8}})
    )


def no_peft_type(folder):
    spoil(folder, peft_type=None)


ADAPTERS = {
    truncated: "truncated|incomplete|shorter",
    corrupt: "safetensors",
    lfs_pointer: "LFS",
    nan_weights: "(?i)nan|finite",
    wrong_base: "25|gate_proj",
    prompt_tuning: "prompt tuning",
    mlx: "MLX",
    no_peft_type: "peft_type",
}


def refused(run, place, *arguments, says, out="run"):
    import re

    before = {p for p in place.rglob("*")}
    result = run(*arguments)
    assert result.exit_code == 2, (result.stdout, result.stderr)
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, result.stderr
    assert result.stderr.splitlines()[-1] == lines[0]
    assert re.search(says, lines[0]), lines[0]
    assert "Traceback" not in result.stderr
    assert not (place / out).exists()
    assert {p for p in place.rglob("*") if "__pycache__" not in p.parts} <= before


@pytest.mark.parametrize(
    ("damage", "says"), ADAPTERS.items(), ids=lambda value: getattr(value, "__name__", "")
)
def test_a_bad_adapter_is_refused_to_start_from(run, place, model_folder, damage, says):
    damage(place)
    refused(
        run,
        place,
        "adapt",
        "--model",
        model_folder,
        "--task",
        "good.jsonl",
        "--start",
        "bad",
        "--out",
        "run",
        says=says,
    )


@pytest.mark.parametrize(
    ("damage", "says"), ADAPTERS.items(), ids=lambda value: getattr(value, "__name__", "")
)
def test_a_bad_adapter_is_refused_for_evaluation(run, place, model_folder, damage, says):
    damage(place)
    refused(run, place, "evaluate", "--model", model_folder, "--task", "good.jsonl", "bad", says=says)


TASKS = {
    "bad JSON": ('{"prompt": "a:", "answer": "b"}\n{"prompt": \n', r"task\.jsonl:2"),
    "a prompt in two splits": (
        "\n".join(
            json.dumps({"prompt": "same:", "answer": "b", "split": s})
            for s in ("train", "test", "validation")
        ),
        "same:",
    ),
    "no answer": ('{"prompt": "a:"}\n', r"task\.jsonl:1"),
    "empty": ("", "empty|no example"),
    "an unknown split": ('{"prompt": "a:", "answer": "b", "split": "holdout"}\n', "holdout"),
    "not UTF-8": (b"\xff\xfe\x00", "UTF-8"),
}


@pytest.mark.parametrize(("content", "says"), TASKS.values(), ids=TASKS.keys())
def test_a_bad_task_file_is_refused(run, place, model_folder, content, says):
    data = content if isinstance(content, bytes) else content.encode()
    (place / "task.jsonl").write_bytes(data)
    refused(run, place, "adapt", "--model", model_folder, "--task", "task.jsonl", "--out", "run", says=says)


REWARDS = {
    "raises": ("raise ValueError('no judge today')", "no judge today"),
    "returns the wrong length": ("return [1.0]", "length|1 value|1 reward|returned 1"),
    "returns text": ("return ['good'] * len(prompts)", "number|good"),
    "returns None": ("return None", "None"),
    "exits": ("import os; os._exit(3)", "ended|died|exit"),
    "hangs": ("import time; time.sleep(60)", "time"),
}


@pytest.mark.parametrize(("body", "says"), REWARDS.values(), ids=REWARDS.keys())
def test_a_reward_that_never_works_is_refused(run, place, model_folder, body, says):
    (place / "judge.py").write_text(f"def judge(prompts, completions, **columns):\n    {body}\n")
    refused(
        run, place, "adapt", "--model", model_folder, "--task", "good.jsonl", "--reward", "judge.py:judge",
        "--batch", "2", "--reward-timeout", "1", "--set", "population=2", "--out", "run", says=says,
    )  # fmt: skip


OPTIONS = {
    "an unknown option in YAML": ("sigmma: 1\ntask: good.jsonl\n", "sigmma"),
    "an unknown option of the method": ("task: good.jsonl\noptions: {sigmma: 0.1}\n", "did you mean.*sigma"),
    "a value out of range": ("task: good.jsonl\noptions: {sigma: -1}\n", "sigma"),
    "an unknown method": ("task: good.jsonl\nmethod: egroll\n", "eggroll"),
    "an unknown reward": ("task: good.jsonl\nreward: exakt\n", "exact"),
    "layers that do not exist": ("task: good.jsonl\nlayers: top:9\n", "top:9"),
    "targets that do not exist": ("task: good.jsonl\ntargets: [qq_proj]\n", "qq_proj"),
    "not YAML": ("a: [\n", "YAML"),
    "an odd population": ("task: good.jsonl\noptions: {population: 3}\n", "even"),
}


@pytest.mark.parametrize(("text", "says"), OPTIONS.values(), ids=OPTIONS.keys())
def test_bad_options_are_refused(run, place, model_folder, text, says):
    (place / "c.yaml").write_text(text)
    refused(run, place, "adapt", "--model", model_folder, "--config", "c.yaml", "--out", "run", says=says)


def test_an_unwritable_folder_is_refused(run, place, model_folder):
    (place / "file").write_text("")
    arguments = ("adapt", "--model", model_folder, "--task", "good.jsonl", "--out", "file/run")
    refused(run, place, *arguments, says="file", out="file/run")


def test_an_existing_output_is_refused_and_kept(run, place, model_folder):
    (place / "taken").mkdir()
    (place / "taken" / "thesis.txt").write_text("precious")
    refused(
        run, place, "adapt", "--model", model_folder, "--task", "good.jsonl", "--out", "taken", says="taken"
    )
    refused(
        run,
        place,
        "adapt",
        "--model",
        model_folder,
        "--task",
        "good.jsonl",
        "--out",
        "taken",
        "--overwrite",
        says="taken",
    )
    assert os.listdir(place / "taken") == ["thesis.txt"]


@pytest.mark.parametrize(
    ("model", "says"),
    [("nobody/no-such-model", "no-such-model"), ("nowhere", "nowhere"), ("good", "config.json")],
)
def test_a_model_that_is_not_there_is_refused(run, place, monkeypatch, model, says):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refused(run, place, "adapt", "--model", model, "--task", "good.jsonl", "--out", "run", says=says)
