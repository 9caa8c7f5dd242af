"""All that applies to a finished search, on a tiny model; the rest is named with its reason."""

import json
from math import sqrt

import pytest
import torch

import evolora as ev
from evolora.adapters import Adapter, Factors
from evolora.diagnostics import continuations, divergences, retained
from evolora.diagnostics.checkup import Finished, diagnose
from evolora.engine import load_base
from evolora.errors import ConfigError, TaskError
from evolora.progress import Progress
from evolora.runs.plain import plain
from evolora.search import GRPO, AdamW, Eggroll
from evolora.search.decomposed import Decomposed
from evolora.search.openai_es import OpenAIES
from evolora.tasks import Example, Task

NAMES = {"walk", "spectra", "sparsity", "decomposition", "population"}
NAMES |= {"gradient", "path", "divergence", "retention"}


def toy(name, letters, answer):
    examples = [Example(f"{a}{b}:", answer) for a in letters for b in "xy"]
    return Task(name, tuple(examples[:8]), tuple(examples[8:12]), tuple(examples[12:]), 2)


TASK, PRIOR = toy("new", "abcdefghij", " e"), toy("old", "klmnopqrst", " f")


METHODS = {
    "weights": Eggroll(population=4),
    "factors": Eggroll(population=4, space="factors", export_rank=2),
    "adam": Eggroll(population=4, optimiser="adam"),
    "dense noise": OpenAIES(population=4),
    "DoRA": Decomposed(population=4),
    "gradients": AdamW(rank=2),
}


@pytest.fixture(scope="module")
def base(model_folder):
    return load_base(str(model_folder))


@pytest.fixture(scope="module")
def finish(base):
    def make(method, **options):
        settings = {"reward": "logprob", "batch": 4, "budget": ev.Budget(steps=3)}
        settings |= {"diagnose": True, "retain": PRIOR}
        return ev.adapt(base, TASK, method=method, **settings | options)

    return make


@pytest.fixture(scope="module")
def outcomes(finish):
    return {name: finish(method) for name, method in METHODS.items()}


@pytest.mark.parametrize("name", METHODS)
def test_everything_is_found_or_its_absence_explained(outcomes, name):
    found = outcomes[name].diagnostics
    assert set(found) - {"not_applicable", "ledger"} | set(found["not_applicable"]) == NAMES
    assert not any("failed" in reason for reason in found["not_applicable"].values())
    json.dumps(plain(found), allow_nan=False)


@pytest.mark.parametrize(
    ("name", "diagnostic", "reason"),
    [
        ("gradients", "gradient", "follows gradients itself"),
        ("adam", "walk", "no independent steps"),
        ("factors", "walk", "no independent steps of a known size"),
        ("DoRA", "path", "DoRA"),
        ("DoRA", "gradient", "DoRA"),
        ("weights", "population", "no population"),
    ],
)
def test_what_does_not_apply_says_why(outcomes, name, diagnostic, reason):
    assert reason in outcomes[name].diagnostics["not_applicable"][diagnostic]


def test_a_policy_method_is_diagnosed_too(finish):
    outcome = finish(GRPO(samples=2, rank=2), reward="regex:[a-m]")
    assert {"spectra", "divergence", "retention"} <= set(outcome.diagnostics)


def test_the_numbers_are_those_of_the_functions(outcomes, base):
    outcome = outcomes["weights"]
    found, engine = outcome.diagnostics, ev.Engine(base)
    assert found["walk"]["ratio"] == pytest.approx(outcome.journal[-1]["walk_ratio"], rel=1e-5)
    assert found["walk"]["norm"] == pytest.approx(outcome.journal[-1]["delta_norm"], rel=1e-5)
    assert found["spectra"]["whole"]["norm"] == pytest.approx(found["walk"]["norm"], rel=1e-5)
    assert found["spectra"]["export_rank"] == outcome.adapter.rank
    after = retained(engine, outcome.adapter, PRIOR)
    assert found["retention"]["after"] == after.after
    assert found["retention"]["log_likelihood"] == after.log_likelihood
    for key, task in (("on_task", TASK), ("off_task", PRIOR)):
        pairs = continuations(engine, [e.prompt for e in task.test])
        (one,) = divergences(engine, outcome.adapter, pairs)
        assert found["divergence"][key]["to_base"] == pytest.approx(one.to_base, rel=1e-6)
        assert found["divergence"][key]["task"] == task.name
    assert found["path"]["first"] == "base"


def test_the_same_seed_gives_the_same_diagnostics(finish, outcomes):
    same = [{**one.diagnostics, "ledger": None} for one in (finish(METHODS["weights"]), outcomes["weights"])]
    assert repr(same[0]) == repr(same[1])  # a nan equals itself only in words


def test_diagnosing_changes_neither_the_search_nor_its_ledger(finish, outcomes):
    plain_run, diagnosed = finish(METHODS["weights"], diagnose=False, retain=None), outcomes["weights"]
    assert plain_run.diagnostics is None
    for name, factors in plain_run.adapter.modules.items():
        assert torch.equal(factors.b, diagnosed.adapter.modules[name].b)
    assert plain_run.ledger.forward_flops == diagnosed.ledger.forward_flops
    assert plain_run.testing.forward_flops == diagnosed.testing.forward_flops
    spent = diagnosed.diagnostics["ledger"]
    assert spent["forward_flops"] > 0
    assert spent["backward_flops"] > 0


def test_a_start_is_the_first_end_of_the_line_and_has_no_walk(finish, base):
    modules = {
        name: Factors(torch.ones(1, spec.d_in), torch.full((spec.d_out, 1), 0.01))
        for name, spec in base.modules().items()
    }
    start = Adapter(modules, name="given")
    found = finish(Eggroll(population=4, export_rank=8), start=start).diagnostics
    assert "began at an adapter" in found["not_applicable"]["walk"]
    assert found["path"]["first"] == "given"
    assert found["path"]["cosine"] > 0.1


def test_each_diagnostic_is_told_as_it_begins(base):
    class Notes(Progress):
        def __init__(self):
            self.lines = []

        def note(self, text):
            self.lines.append(text)

    notes = Notes()
    settings = {"reward": "logprob", "batch": 4, "budget": ev.Budget(steps=1), "diagnose": True}
    ev.adapt(base, TASK, method=Eggroll(population=2), retain=PRIOR, progress=notes, **settings)
    assert {line.removeprefix("diagnostics: ") for line in notes.lines if "diagnostics" in line} == NAMES


def test_one_that_fails_is_named_and_costs_no_other(finish, monkeypatch):
    def broken(*arguments):
        raise TaskError("the dog ate it")

    monkeypatch.setattr("evolora.diagnostics.checkup.retained", broken)
    found = finish(Eggroll(population=4)).diagnostics
    assert found["not_applicable"]["retention"] == "it failed: the dog ate it"
    assert "divergence" in found


def test_a_wrong_prior_task_is_refused_before_the_search(base):
    for retain, error in (("tings", TaskError), (TASK, ConfigError)):
        with pytest.raises(error):
            ev.adapt(base, TASK, method=Eggroll(population=2), reward="logprob", diagnose=True, retain=retain)


def test_to_retain_needs_to_diagnose(finish):
    with pytest.raises(ConfigError, match="retain needs diagnose"):
        finish(METHODS["weights"], diagnose=False)


def test_the_walk_of_a_state_kept_by_the_guard_is_its_own(base):
    """The best state may be an early one: its walk is as short as it is."""
    problem = ev.Problem(ev.Engine(base), TASK, ev.load_reward("logprob"), 4)
    method = Eggroll(population=4, decay="constant")
    state, lines = method.init(problem.template, 0), []
    for step in range(4):
        kept = state
        rewards = problem.evaluate(method.ask(state), step)
        state, metrics = method.tell(state, rewards.values)
        lines.append(metrics)
    found = diagnose(Finished(problem, method, kept, method.adapter(kept), lines, PRIOR))
    weights = sum(spec.d_out * spec.d_in for spec in problem.template.values())
    assert found["walk"]["length"] == pytest.approx(method.sigma * sqrt(3 * weights), rel=1e-6)
