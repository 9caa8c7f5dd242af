"""The main job, end to end, on a tiny random model: what it leaves; a killed run ends like any other."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch
import yaml

from evolora.adapters import Adapter
from evolora.config import AdaptConfig
from evolora.engine import Engine, load_base
from evolora.errors import ConfigError, InputError, RewardError, RunError
from evolora.job import carry_out, preflight
from evolora.progress import Progress
from evolora.report.recipes import recipes
from evolora.report.run_data import read_run


@pytest.fixture
def toy_task(tmp_path):
    file = tmp_path / "toy.jsonl"
    rows = [
        {"prompt": f"{a}{b}:", "answer": "e", "split": split, "family": b}
        for split, letters in (("train", "abcdefgh"), ("validation", "ij"), ("test", "klmnopqr"))
        for a in letters
        for b in "xy"
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


@pytest.fixture
def config(toy_task, model_folder, tmp_path):
    return AdaptConfig(
        model=str(model_folder),
        task=str(toy_task),
        reward="logprob",
        options={"population": 8, "sigma": 0.05, "lr": 1.0},
        batch=4,
        budget_steps=6,
        out=tmp_path / "run",
    )


def with_(config, **changes):
    return config.model_copy(update=changes)


def test_a_run_leaves_all_that_it_promises(config):
    result = carry_out(config)
    assert result["difference"]["value"] == pytest.approx(
        result["adapted"]["accuracy"] - result["base"]["accuracy"], abs=1e-9
    )
    assert result["steps"] == 6
    assert result["stopped"] == "steps budget spent"
    assert result["ledger"]["evaluations"] == 6 * 8 * 4
    assert set(result["adapted"]["families"]) == {"x", "y"}
    assert result["adapted"]["n"] == 16
    run = json.loads((config.out / "run.json").read_text())
    assert status(config.out) == "done"
    assert run["base"]["fingerprint"] == load_base(config.model).fingerprint
    journal = [json.loads(line) for line in (config.out / "journal.jsonl").read_text().splitlines()]
    assert [line["step"] for line in journal] == [1, 2, 3, 4, 5, 6]
    assert journal[-1]["reward_mean"] > journal[0]["reward_mean"]
    for name in ("report.html", "metrics.parquet", "config.yaml", "adapter/adapter_model.safetensors"):
        assert (config.out / name).stat().st_size > 0


def test_the_adapter_scores_in_peft_what_it_scored_in_the_run(config):
    from peft import PeftModel

    result = carry_out(with_(config, reward="exact", export_rank=64))
    base = load_base(config.model)
    before = Engine(base).generate(Adapter.load(result["adapter"]), ["kx:", "ly:"], max_new_tokens=5)[0]
    model = PeftModel.from_pretrained(base.model, result["adapter"])
    for prompt, text in zip(["kx:", "ly:"], before, strict=True):
        ids = torch.tensor([base.encode(prompt)])
        out = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False
        )
        assert base.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True) == text


@pytest.mark.parametrize("method", ["eggroll", "adamw"])
def test_the_same_seed_gives_the_same_adapter_and_another_does_not(config, tmp_path, method):
    options = config.options if method == "eggroll" else {"rank": 2}
    config = with_(config, method=method, options=options)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        carry_out(with_(config, seed=seed, out=tmp_path / name))
    weights = [(tmp_path / name / "adapter/adapter_model.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.parametrize(
    ("budget", "stopped", "steps"),
    [
        ({"budget_evaluations": 70}, "evaluations", 3),
        ({"budget_flops": 1.0}, "flops", 1),
        ({"budget_steps": 9, "budget_evaluations": 64}, "evaluations", 2),
        ({"budget_seconds": 1e-6}, "seconds", 1),
    ],
)
def test_the_first_budget_spent_ends_the_run_and_is_named(config, budget, stopped, steps):
    result = carry_out(with_(config, **{"budget_steps": None, **budget}))
    assert (result["stopped"], result["steps"]) == (f"{stopped} budget spent", steps)


def test_gradients_are_in_the_ledger(config):
    result = carry_out(with_(config, method="adamw", options={"rank": 2}, budget_steps=2))
    assert result["ledger"]["backward_flops"] > 0
    assert result["ledger"]["evaluations"] == 8


def test_an_interrupt_saves_and_the_resumed_run_ends_like_one_never_stopped(config, tmp_path):
    whole = with_(config, out=tmp_path / "whole")
    carry_out(whole)

    with pytest.raises(KeyboardInterrupt):
        carry_out(config, StopAt(3))
    assert status(config.out) == "stopped: interrupted"
    carry_out(with_(config, resume=True))
    same(config.out, whole.out)


def test_a_policy_run_is_budgeted_counted_and_resumed_bit_for_bit(config, tmp_path):
    options = {"rank": 2, "samples": 4, "lr": 0.01, "epochs": 2, "kl": 0.01}
    config = with_(config, method="grpo", reward="regex:[a-m]", options=options, max_new_tokens=6)
    whole = with_(config, out=tmp_path / "whole")
    result = carry_out(whole)
    assert result["ledger"]["evaluations"] == 6 * 4 * 4
    assert result["ledger"]["backward_flops"] > 0
    journal = [json.loads(line) for line in (whole.out / "journal.jsonl").read_text().splitlines()]
    assert any(line["no_spread"] == 0 and line["update_norm"] > 0 for line in journal)
    for point in (1, 3):
        part = with_(config, out=tmp_path / f"stopped-at-{point}")
        with pytest.raises(KeyboardInterrupt):
            carry_out(part, StopAt(point))
        carry_out(with_(part, resume=True))
        same(part.out, whole.out)


def test_a_policy_cannot_learn_from_scores(config):
    with pytest.raises(ConfigError, match="the reward logprob is read off scores"):
        carry_out(with_(config, method="grpo", options={}))
    assert not config.out.exists()


class StopAt(Progress):
    def __init__(self, step):
        self.step = step

    def update(self, step, metrics):
        if step == self.step:
            signal.raise_signal(signal.SIGINT)


def status(folder):
    file = folder / "run.json"
    return json.loads(file.read_text())["status"] if file.exists() else None


def same(one, other):
    name = "adapter/adapter_model.safetensors"
    assert (one / name).read_bytes() == (other / name).read_bytes()
    texts = [(path / "journal.jsonl").read_text() for path in (one, other)]
    journals = [[json.loads(line) for line in text.splitlines()] for text in texts]
    for a, b in zip(*journals, strict=True):
        a.pop("seconds"), b.pop("seconds")
        assert a == b


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_again_and_again_ends_like_one_never_killed(config, tmp_path, kills):
    config = with_(config, budget_steps=10 * kills)
    whole = with_(config, out=tmp_path / "whole")
    carry_out(whole)
    code = (
        "import sys; from evolora.config import AdaptConfig; from evolora.job import carry_out\n"
        "print('up', flush=True); carry_out(AdaptConfig.model_validate_json(sys.argv[1]))"
    )
    chance = random.Random(0)
    for _ in range(kills):
        resumed = with_(config, resume=status(config.out) is not None)
        process = subprocess.Popen(
            [sys.executable, "-c", code, resumed.model_dump_json()],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        )
        process.stdout.readline()
        time.sleep(chance.uniform(0.5, 4.5))
        process.kill()
        process.wait()
        if status(config.out) == "done":
            break
    else:
        carry_out(with_(config, resume=status(config.out) is not None))
    same(config.out, whole.out)


def test_a_reward_that_always_fails_is_an_error_and_leaves_nothing(config, tmp_path):
    reward = tmp_path / "reward.py"
    reward.write_text("def judge(prompts, completions, **columns):\n    raise ValueError('no judge today')\n")
    with pytest.raises(RewardError, match="no judge today"):
        carry_out(with_(config, reward=f"{reward}:judge"))
    assert not config.out.exists()


def test_an_existing_run_is_not_touched_unless_asked(config):
    carry_out(config)
    kept = (config.out / "run.json").read_bytes()
    with pytest.raises(RunError, match="overwrite"):
        carry_out(config)
    assert (config.out / "run.json").read_bytes() == kept
    carry_out(with_(config, overwrite=True, seed=3))
    assert (config.out / "run.json").read_bytes() != kept


def test_other_options_on_resume_are_named(config):
    with pytest.raises(KeyboardInterrupt):
        carry_out(config, Stop())
    with pytest.raises(RunError, match="batch was 4, is 5"):
        carry_out(with_(config, resume=True, batch=5))
    assert carry_out(with_(config, resume=True, budget_steps=3))["steps"] == 3


def test_the_base_is_never_written_to(config):
    before = {f.name: f.read_bytes() for f in sorted(__import__("pathlib").Path(config.model).iterdir())}
    carry_out(with_(config, method="adamw", options={}))
    after = {f.name: f.read_bytes() for f in sorted(__import__("pathlib").Path(config.model).iterdir())}
    assert before == after


def test_a_prompt_that_is_too_long_for_the_model_stops_nothing_half_way(config, toy_task):
    rows = [json.loads(line) for line in toy_task.read_text().splitlines()]
    rows.append({"prompt": "z" * 300 + ":", "answer": "e", "split": "train"})
    toy_task.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match="256"):
        carry_out(config)
    assert not config.out.exists()


class Stop(Progress):
    def update(self, step, metrics):
        signal.raise_signal(signal.SIGINT)


def test_a_run_is_not_resumed_on_other_data(config, toy_task):
    with pytest.raises(KeyboardInterrupt):
        carry_out(config, Stop())
    toy_task.write_text(toy_task.read_text().replace('"answer": "e"', '"answer": "f"'))
    before = (config.out / "run.json").read_bytes()
    with pytest.raises(RunError, match="the data changed"):
        carry_out(with_(config, resume=True))
    assert (config.out / "run.json").read_bytes() == before


def test_a_run_is_not_resumed_with_another_reward(config, tmp_path):
    reward = tmp_path / "reward.py"
    reward.write_text(
        "def judge(prompts, completions, **columns):\n    return [float(len(c)) for c in completions]\n"
    )
    config = with_(config, reward=f"{reward}:judge")
    with pytest.raises(KeyboardInterrupt):
        carry_out(config, Stop())
    reward.write_text(reward.read_text().replace("float(", "-float("))
    with pytest.raises(RunError, match="the judge changed"):
        carry_out(with_(config, resume=True))


def test_a_run_is_not_resumed_on_another_base(config, tmp_path):
    import shutil

    from transformers import AutoModelForCausalLM

    folder = tmp_path / "model"
    shutil.copytree(config.model, folder)
    config = with_(config, model=str(folder))
    with pytest.raises(KeyboardInterrupt):
        carry_out(config, Stop())
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.lm_head.weight.data.mul_(2)
    model.save_pretrained(folder)
    with pytest.raises(RunError, match="the base changed"):
        carry_out(with_(config, resume=True))


def test_a_reward_that_fails_does_not_cost_an_older_run_or_a_file_of_the_users(config, tmp_path):
    carry_out(config)
    (config.out / "notes.txt").write_text("precious")
    reward = tmp_path / "reward.py"
    reward.write_text("def judge(prompts, completions, **columns):\n    raise ValueError('no')\n")
    before = {file: file.read_bytes() for file in config.out.rglob("*") if file.is_file()}
    with pytest.raises(RewardError):
        carry_out(with_(config, reward=f"{reward}:judge", overwrite=True))
    assert {file: file.read_bytes() for file in config.out.rglob("*") if file.is_file()} == before


def test_the_adapter_is_there_even_if_the_test_cannot_end(config, monkeypatch):
    def fails(*arguments, **options):
        raise RewardError("the judge went home")

    monkeypatch.setattr("evolora.adaptation.evaluate", fails)
    with pytest.raises(RewardError):
        carry_out(config)
    assert Adapter.load(config.out / "adapter").modules
    monkeypatch.undo()
    assert carry_out(with_(config, resume=True))["steps"] == 6


def test_completions_that_were_judged_count_as_evaluations(config):
    result = carry_out(with_(config, reward="contains", budget_steps=None, budget_evaluations=70))
    assert (result["stopped"], result["steps"]) == ("evaluations budget spent", 3)


def journal(folder):
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def test_a_watched_run_keeps_its_best_state_and_resumes_bit_for_bit(config, tmp_path):
    config = with_(config, validate_every=2, options={"population": 8, "sigma": 0.05, "lr": 2.0})
    whole = with_(config, out=tmp_path / "whole")
    carry_out(whole)
    looks = [line.get("validation") for line in journal(whole.out)]
    assert [look is not None for look in looks] == [False, True] * 3
    for point in (1, 4):
        part = with_(config, out=tmp_path / f"stopped-at-{point}")
        with pytest.raises(KeyboardInterrupt):
            carry_out(part, StopAt(point))
        carry_out(with_(part, resume=True))
        same(part.out, whole.out)


def test_a_search_that_gets_nowhere_stops_on_a_plateau_with_the_base(config):
    options = {"population": 8, "sigma": 1e-6, "lr": 1e-6}
    config = with_(config, reward="exact", validate_every=1, patience=2, options=options, budget_steps=50)
    result = carry_out(config)
    assert (result["stopped"], result["steps"]) == ("plateau", 2)
    assert result["difference"]["value"] == 0


class Notes(Progress):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def test_a_search_that_falls_goes_back_to_its_best_state_with_half_the_step_and_says_so(config):
    options = {"population": 8, "sigma": 0.05, "lr": 20.0}
    notes = Notes()
    carry_out(with_(config, validate_every=1, options=options), notes)
    lines = journal(config.out)
    fall = next(line["step"] for line in lines if line["diverged"])
    best = max(lines[: fall - 1], key=lambda line: line["validation"])["step"]
    assert any(f"step {fall}: the search diverged; the state of step {best}" in text for text in notes.notes)
    assert lines[fall - 1]["lr"] == pytest.approx(20 * (1 - (fall - 1) / 6))
    assert lines[fall]["lr"] == pytest.approx(10 * (1 - fall / 6))
    assert lines[fall]["delta_norm"] < lines[fall - 1]["delta_norm"] + lines[fall]["update_norm"]


def test_a_preflight_recommends_a_sigma_and_writes_nothing(config):
    found = preflight(config)
    assert [rung["sigma"] for rung in found["rungs"]] == sorted(rung["sigma"] for rung in found["rungs"])
    spreads = [rung["spread"] for rung in found["rungs"]]
    kls = [rung["kl"] for rung in found["rungs"]]
    assert spreads[0] < spreads[-1]
    assert 0 <= kls[0] < kls[-1]
    assert found["sigma"] in [rung["sigma"] for rung in found["rungs"]]
    assert not config.out.exists()


@pytest.mark.parametrize(
    ("method", "options", "mend"),
    [
        ("adamw", {}, "use decomposed, eggroll, openai_es"),
        ("mezo", {}, "use decomposed, eggroll, openai_es"),
        ("openai_es", {}, "set antithetic=true"),
    ],
)
def test_a_preflight_needs_pairs_and_says_so_before_anything_is_loaded(config, method, options, mend):
    with pytest.raises(ConfigError, match=mend):
        preflight(with_(config, method=method, options=options, model="no/such-model"))


@pytest.mark.parametrize(
    ("options", "names"),
    [({}, {"sigma", "lr"}), ({"ablation": "magnitude_only"}, {"sigma_magnitude", "lr_magnitude"})],
)
def test_a_preflight_tries_the_size_that_the_method_perturbs_by(config, options, names):
    found = preflight(with_(config, method="decomposed", options={"population": 8} | options))
    assert found["rungs"][0]["spread"] < found["rungs"][-1]["spread"]
    assert set(found["options"]) == names


def test_a_preflight_asks_no_prompt_twice(config, tmp_path):
    file = tmp_path / "one.jsonl"
    rows = [
        {"prompt": f"{split}:", "answer": "e", "split": split} for split in ("train", "validation", "test")
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ConfigError, match="one prompt is too few"):
        preflight(with_(config, task=str(file)))


def test_a_finished_run_is_not_resumed_and_nothing_is_loaded_to_say_so(config):
    carry_out(config)
    with pytest.raises(RunError, match=r"this run is done.*--start .*run/adapter"):
        carry_out(with_(config, resume=True, model="no/such-model"))


def test_a_rank_is_asked_for_once(config):
    options = {"population": 8, "export_rank": 4}
    with pytest.raises(ConfigError, match="export_rank is 4 among the method's options and 8"):
        carry_out(with_(config, options=options, export_rank=8))
    assert carry_out(with_(config, options=options, export_rank=4))["steps"] == 6


def test_the_reward_that_was_taken_is_written_down(config):
    carry_out(with_(config, reward=None, max_new_tokens=2))
    assert yaml.safe_load((config.out / "config.yaml").read_text())["reward"] == "exact"


def test_the_pages_snippet_says_what_the_run_said(config, capsys):
    sample = carry_out(with_(config, stop="\n", reward="exact"))["samples"][0]
    code = recipes(read_run(config.out))[0][1].replace("your prompt", sample["prompt"])
    exec(compile(code, "recipe", "exec"), {})
    said = capsys.readouterr().out
    assert said.startswith(sample["prompt"] + sample["adapted"])
    assert sample["adapted"]


def test_a_search_of_size_zero_says_so(config):
    notes = Notes()
    carry_out(with_(config, options={"sigma": 0, "population": 4}), notes)
    assert any("sigma is 0" in note for note in notes.notes)


def test_a_run_from_an_adapter_is_compared_with_it_too(config, tmp_path):
    assert "start" not in carry_out(config)
    result = carry_out(with_(config, start=config.out / "adapter", seed=1, out=tmp_path / "further"))
    assert result["over_start"]["value"] == pytest.approx(
        result["adapted"]["accuracy"] - result["start"]["accuracy"], abs=1e-9
    )
    first = json.loads((config.out / "result.json").read_text())
    assert result["start"]["accuracy"] == pytest.approx(first["adapted"]["accuracy"], abs=1e-6)


FAST = {name: {"population": 4} for name in ("decomposed", "openai_es", "replicator", "random_search")} | {
    "mezo": {"lr": 1e-3},
    "cma": {},
    "adamw": {"rank": 2},
}


@pytest.mark.parametrize("name", FAST)
def test_every_method_resumes_bit_for_bit_under_a_guard(config, tmp_path, name):
    config = with_(config, method=name, options=FAST[name], validate_every=2, budget_steps=5)
    whole = with_(config, out=tmp_path / "whole")
    carry_out(whole)
    with pytest.raises(KeyboardInterrupt):
        carry_out(config, StopAt(3))
    carry_out(with_(config, resume=True))
    same(config.out, whole.out)


@pytest.mark.parametrize("name", ["eggroll", *(name for name in FAST if name != "adamw")])
def test_every_search_survives_rewards_that_fail_here_and_there(config, tmp_path, name):
    reward = tmp_path / "reward.py"
    reward.write_text(
        "calls = [0]\n"
        "def judge(prompts, completions, **columns):\n"
        "    calls[0] += 1\n"
        "    lost = float('nan')\n"
        "    return [lost if (calls[0] + i) % 3 else len(c) for i, c in enumerate(completions)]\n"
    )
    options = FAST.get(name, {"population": 4})
    result = carry_out(
        with_(
            config, method=name, options=options, reward=f"{reward}:judge", max_new_tokens=4, budget_steps=3
        )
    )
    assert result["steps"] == 3
    assert sum(line["missing"] for line in journal(config.out)) > 0


class Axes(Progress):
    def __init__(self):
        self.axis, self.seen = None, []

    def start(self, total, budget):
        self.axis = (budget, total)

    def update(self, step, metrics):
        self.seen.append((*self.axis, metrics["spent"]))


def test_progress_counts_the_budget_that_it_names(config):
    progress = Axes()
    carry_out(with_(config, budget_steps=9, budget_evaluations=70), progress)
    assert progress.seen == [("evaluations", 70, 32), ("evaluations", 70, 64), ("evaluations", 70, 96)]


def test_the_last_state_is_looked_at_before_one_is_taken(config, monkeypatch):
    from evolora.guard import Guard

    steps, look = [], Guard.look

    def noted(self, state, centre):
        steps.append(state.step)
        return look(self, state, centre)

    monkeypatch.setattr(Guard, "look", noted)
    carry_out(with_(config, validate_every=4))
    assert steps == [0, 4, 6]


def test_a_guarded_search_survives_the_loss_of_all_values(config):
    options = {"population": 4, "lr": 1e30, "sigma": 0.05}
    notes = Notes()
    result = carry_out(with_(config, options=options, validate_every=1, budget_steps=4), notes)
    assert any("diverged" in note for note in notes.notes)
    assert result["adapted"]["accuracy"] == result["adapted"]["accuracy"]


def test_what_a_method_refuses_costs_no_finished_run(config, tmp_path):
    carry_out(config)
    before = {file: file.read_bytes() for file in config.out.rglob("*") if file.is_file()}
    adapter = tmp_path / "adapter"
    Adapter.load(config.out / "adapter").save(adapter)
    refused = {"method": "adamw", "options": {"rank": 1}, "start": adapter, "overwrite": True}
    with pytest.raises(InputError, match="rank"):
        carry_out(with_(config, **refused))
    assert {file: file.read_bytes() for file in config.out.rglob("*") if file.is_file()} == before


def test_a_search_whose_numbers_overflow_says_so_in_one_line(config):
    options = {"population": 4, "lr": 1e45, "sigma": 0.05}
    with pytest.raises(RunError, match="diverged"):
        carry_out(with_(config, options=options, budget_steps=2))


def test_a_raised_budget_wastes_no_step(config, monkeypatch):
    def fails(*arguments, **options):
        raise RewardError("the judge went home")

    config = with_(config, budget_steps=3)
    monkeypatch.setattr("evolora.adaptation.evaluate", fails)
    with pytest.raises(RewardError):
        carry_out(config)
    monkeypatch.undo()
    carry_out(with_(config, resume=True, budget_steps=6))
    sizes = [line["lr"] for line in journal(config.out)]
    assert sizes == pytest.approx([1, 2 / 3, 1 / 3, 1 / 2, 1 / 3, 1 / 6])


@pytest.mark.parametrize("budget", ["tokens", "forward_flops"])
def test_the_first_step_of_a_gradient_method_has_a_size_whatever_the_budget(config, budget):
    changes = {"method": "adamw", "options": {"rank": 2}, "budget_steps": None, f"budget_{budget}": 1}
    carry_out(with_(config, **changes))
    assert journal(config.out)[0]["update_norm"] > 0
