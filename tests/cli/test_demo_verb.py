from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def small_demo(adaptation, monkeypatch):
    monkeypatch.setattr("evolora.tasks.load_task", _Task)


class _Task:
    def __init__(self, spec, seed=0, **sizes):
        self.name, self.description, self.train = spec, "letters into order", [_Example]


class _Example:
    prompt, answer = "sort: b a ->", " a b"


def test_seed_folder_and_overwrite_reach_the_run(run, adaptation):
    assert run("demo", "--seed", "7", "--out", "there", "--overwrite").exit_code == 0
    (config,) = adaptation.configs
    assert (config.seed, config.out, config.overwrite) == (7, Path("there"), True)


def test_json_has_what_a_script_needs(run, only_object):
    found = only_object(run("demo", "--json").stdout)
    assert {"base", "adapted", "difference", "adapter", "report", "ledger"} <= set(found)
    assert {"accuracy", "ci"} <= set(found["base"])
    assert {"value", "ci"} <= set(found["difference"])


def test_it_says_what_is_taught_and_what_to_do_next(run):
    result = run("demo")
    assert "letters into order" in result.stderr
    assert "'sort: b a ->'" in result.stderr
    assert "evolora evaluate --model smollm2-135m --task toy --reward exact runs/x/adapter" in result.stdout
