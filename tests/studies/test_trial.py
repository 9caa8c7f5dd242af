from math import isnan

import pytest

from evolora.budget import Budget
from evolora.studies.random_model import random_base
from evolora.studies.trial import TINY, base_of, problem_of, search
from evolora.tasks import load_task


@pytest.fixture
def problem():
    task = load_task("strings/upper:3", seed=1, train=40, validation=8, test=12)
    return problem_of(random_base(0), task, "logprob", 1, TINY | {"layers": None})


def test_the_random_base_is_one_of_its_seed_and_tells_tokens_apart():
    assert base_of("random") is random_base(0) is random_base(0)
    assert random_base(1).fingerprint != random_base(0).fingerprint
    base = random_base(0)
    text = "".join(map(chr, range(32, 126))) + "\n"
    assert base.tokenizer.decode(base.encode(text)) == text
    assert base.encode("a") != base.encode("b")


def test_a_trial_is_tested_on_fresh_prompts_outside_its_ledger(problem):
    trial = search(problem, "eggroll", {"population": 8, "lr": 0.5}, Budget(steps=6), 1)
    spent = trial.record()["ledger"]
    found = trial.tested()
    assert found["nats"] < found["start_nats"]
    assert not found["catastrophic"]
    assert isnan(found["gain"]) is False
    assert trial.record()["ledger"] == spent
    assert trial.record()["steps"] == 6
    flops = [x for x, _ in trial.record()["curves"]["reward"]]
    assert flops == sorted(flops)
    assert len(flops) == 6
    test = problem.task.test
    scores = problem.engine.score(trial.adapter, [e.prompt for e in test], [e.answer for e in test])
    assert found["nats"] == pytest.approx(-(scores.log_likelihood / scores.tokens).mean().item(), rel=1e-4)


def test_a_search_that_diverges_is_a_result(problem):
    trial = search(problem, "eggroll", {"lr": 1e38}, Budget(steps=6), 1)
    assert trial.adapter is None
    assert isnan(trial.validated())
    found = trial.tested()
    assert found["catastrophic"] == 1
    assert isnan(found["nats"])
