import json
import os
import shlex
import subprocess
import sys

import pytest


@pytest.fixture
def task_file(tmp_path):
    rows = [
        {"prompt": f"q{i}", "answer": f"a{i}", "family": "even" if i % 2 == 0 else "odd", "split": split}
        for split, numbers in (("train", range(4)), ("validation", range(4, 8)), ("test", range(8, 14)))
        for i in numbers
    ]
    path = tmp_path / "toy.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def length_reward(tmp_path):
    path = tmp_path / "rewards.py"
    path.write_text(
        "def share(prompts, completions, **columns):\n"
        "    print('a print of the user')\n"
        "    return [sum(map(ord, c)) % 7 / 7 for c in completions]\n"
    )
    return f"{path}:share"


def test_the_base_and_adapters_stand_in_one_object(
    run, only_object, model_folder, make_adapter_folder, task_file, length_reward
):
    same, other = make_adapter_folder("same", 0.0), make_adapter_folder("other", 3.0)
    result = run(
        "evaluate",
        same,
        other,
        "--model",
        model_folder,
        "--task",
        task_file,
        "--reward",
        length_reward,
        "--json",
    )
    assert result.exit_code == 0, result.stderr
    found = only_object(result.stdout)
    base, unchanged, changed = found["models"]
    assert [row["name"] for row in found["models"]] == ["base", str(same), str(other)]
    assert base["n"] == 6
    assert {name: family["n"] for name, family in base["families"].items()} == {"even": 3, "odd": 3}
    assert unchanged["accuracy"] == base["accuracy"]
    assert unchanged["difference"]["value"] == 0
    assert changed["difference"]["value"] == pytest.approx(changed["accuracy"] - base["accuracy"])
    assert changed["difference"]["value"] != 0
    assert found["ledger"]["generated_tokens"] > 0


def test_the_table_has_every_model_family_and_split(run, model_folder, make_adapter_folder, task_file):
    adapter = make_adapter_folder("other", 3.0)
    result = run(
        "evaluate", adapter, "--model", model_folder, "--task", task_file, "--split", "validation", "--quiet"
    )
    assert result.exit_code == 0, result.stderr
    for part in ("validation split", "base", "even", "odd", "no clear difference", "0.0 %"):
        assert part in result.stdout


def test_the_libraries_are_silent_in_a_true_process(model_folder, task_file):
    command = [sys.executable, "-c", "from evolora.cli import main; main()", "evaluate", "--quiet", "--json"]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("EVOLORA", "HF_", "TQDM"))
    }
    done = subprocess.run(
        [*command, "--model", str(model_folder), "--task", str(task_file)],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.stderr == ""
    assert json.loads(done.stdout)["models"][0]["name"] == "base"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--split", "tests"], "--split"),
        (["--task", "no/such.jsonl"], "no/such.jsonl"),
        (["--reward", "exakt"], "did you mean exact"),
        (["--dtype", "int8"], "float32"),
        (["--model", "./nowhere"], "nowhere"),
        (["nowhere"], "no such folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_with_exit_code_2(run, model_folder, task_file, arguments, part):
    result = run("evaluate", "--task", task_file, "--model", model_folder, "--quiet", *arguments)
    assert result.exit_code == 2
    assert part in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_an_adapter_of_another_base_is_refused(run, model_folder, make_adapter_folder, task_file):
    wide = make_adapter_folder("wide", 1.0, width=20)
    result = run("evaluate", wide, "--task", task_file, "--model", model_folder, "--quiet")
    assert result.exit_code == 2
    assert "gate_proj" in result.stderr


def test_the_command_that_a_run_prints_measures_what_it_reported(
    run, only_object, model_folder, task_file, tmp_path
):
    made = run(
        "adapt", "--model", model_folder, "--task", task_file, "--reward", "regex:[a-m]", "--shots", "1",
        "--train", "3", "--test", "4", "--max-new-tokens", "3", "--seed", "1", "--budget-steps", "1",
        "--set", "population=2", "--set", "sigma=1", "--out", tmp_path / "run",
    )  # fmt: skip
    assert made.exit_code == 0, made.stderr
    printed = made.stdout[made.stdout.index("evolora evaluate") :].splitlines()[0]
    found = only_object(run(*shlex.split(printed)[1:], "--json").stdout)
    told = json.loads((tmp_path / "run" / "result.json").read_text())
    assert found["models"][0]["n"] == 4
    assert [row["accuracy"] for row in found["models"]] == [
        told[name]["accuracy"] for name in ("base", "adapted")
    ]


def test_a_folder_that_is_no_adapter_is_refused_before_the_model_loads(
    run, task_file, make_adapter_folder, tmp_path
):
    (tmp_path / "run").mkdir()
    make_adapter_folder("adapter", 0.0).rename(tmp_path / "run" / "adapter")
    result = run("evaluate", tmp_path / "run", "--model", "no/such-model", "--task", task_file)
    assert result.exit_code == 2
    assert f"is a run's folder; give {tmp_path / 'run' / 'adapter'}" in result.stderr
