import pytest

from evolora.diagnostics.retention import PRIORS, prior_task, retained
from evolora.errors import ConfigError, TaskError
from evolora.problems import evaluate, load_reward
from evolora.stats import paired_difference
from evolora.tasks import Example, Task, load_task

EXAMPLES = tuple(Example(f"{a}{b}:", f" {answer}") for a in "abcdefgh" for b, answer in ("xe", "yf"))


@pytest.fixture
def task():
    return Task("toy", EXAMPLES[:2], EXAMPLES[2:4], EXAMPLES[4:], 2)


@pytest.fixture
def adapter(engine, make_adapter):
    return make_adapter(engine.base.modules("all-linear"), size=0.6)


def test_it_is_two_evaluations_and_their_paired_difference(engine, adapter, task):
    found = retained(engine, adapter, task, reward=load_reward("regex:[a-m]"))
    judged = [
        evaluate(engine, members, task.test, load_reward("regex:[a-m]"), 4)[0] for members in (None, adapter)
    ]
    assert [found.before["accuracy"], found.after["accuracy"]] == [one.accuracy for one in judged]
    assert found.before["accuracy"] != found.after["accuracy"]
    value, ci, p = paired_difference(judged[1].correct, judged[0].correct)
    assert found.difference == {"value": value, "ci": list(ci), "p": p}


def test_the_log_likelihood_is_that_of_the_answers_per_token(engine, adapter, task):
    found = retained(engine, adapter, task).log_likelihood
    prompts, answers = [e.prompt for e in task.test], [e.answer for e in task.test]
    means = []
    for members in (None, adapter):
        scores = engine.score(members, prompts, answers)
        means.append((scores.log_likelihood / scores.tokens).mean().item())
    assert [found["before"], found["after"]] == pytest.approx(means, rel=1e-5)
    assert found["difference"]["value"] == pytest.approx(means[1] - means[0], rel=1e-3)


def test_it_reproduces_and_asks_no_more_than_it_is_told_to(engine, adapter, task):
    assert retained(engine, adapter, task, seed=5) == retained(engine, adapter, task, seed=5)
    assert retained(engine, adapter, task, prompts=3).before["n"] == 3


def test_without_answers_there_is_no_likelihood(engine, adapter):
    silent = tuple(Example(f"{letter}:", "") for letter in "abcdef")
    task = Task("silent", silent[:2], silent[2:4], silent[4:], 2, reward="regex:[a-m]")
    assert retained(engine, adapter, task).log_likelihood is None


def test_the_prior_task_is_another_one(task):
    assert prior_task(task).name == PRIORS[0]
    assert prior_task(load_task("demo")).name == PRIORS[1]
    assert prior_task(load_task(PRIORS[1])).name == PRIORS[0]
    assert prior_task(task, "lists/sort").name == "lists/sort"
    with pytest.raises(ConfigError, match="is the task that is learned"):
        prior_task(load_task("demo"), "demo")
    with pytest.raises(TaskError, match="no task is named"):
        prior_task(task, "tings")
