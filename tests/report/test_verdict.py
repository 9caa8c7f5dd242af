import copy

import pytest
from fabricated_run import RECORD, RESULT

from evolora.report.comparison import looks_of
from evolora.report.figures import validation_figure
from evolora.report.run_data import read_run
from evolora.report.verdict import give_verdict


def changed(**parts):
    result = copy.deepcopy(RESULT)
    for key, value in parts.items():
        if isinstance(value, dict):
            result[key].update(value)
        else:
            result[key] = value
    return result


def verdict(make_run, **parts):
    return give_verdict(read_run(make_run(**parts)))


def test_the_sentence_says_how_many_of_how_many_and_how_sure(make_run):
    found = verdict(make_run)
    assert found.sentence == (
        "Adapted from reward alone: 41.3 % of 150 fresh test prompts right, against 7.3 % for the base: "
        "+34.0 points (95 % interval 26.0 to 42.0)."
    )
    assert (found.tone, found.headline) == ("better", "The adapter helped")


@pytest.mark.parametrize(
    ("interval", "tone"),
    [([0.001, 0.2], "better"), ([0.0, 0.2], "unclear"), ([-0.1, 0.2], "unclear"), ([-0.2, -0.01], "worse")],
)
def test_only_an_interval_clear_of_zero_decides(make_run, interval, tone):
    assert verdict(make_run, result=changed(difference={"ci": interval})).tone == tone


def test_without_an_interval_nothing_is_claimed(make_run):
    found = verdict(make_run, result=changed(difference={"ci": [None, None]}))
    assert found.tone == "unclear"
    assert "interval" not in found.sentence


def test_gradients_are_not_called_reward_alone(make_run):
    found = verdict(make_run, result=changed(ledger={"backward_flops": 5}, method="adamw"))
    assert found.sentence.startswith("Adapted by gradients (adamw): 41.3 %")


@pytest.mark.parametrize("reward", ["logprob", "judge.py:score"])
def test_a_reward_that_is_no_share_is_not_called_percent(make_run, reward):
    result = changed(
        reward=reward,
        base={"accuracy": -2.9},
        adapted={"accuracy": -1.83},
        difference={"value": 1.07, "ci": [0.9, 1.2]},
    )
    assert verdict(make_run, result=result).sentence == (
        "Adapted from reward alone: mean reward −1.83 on 150 fresh test prompts, against −2.9 for the base: "  # noqa: RUF001
        "+1.070 (95 % interval 0.900 to 1.200)."
    )


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ("running", "not finished"),
        ("stopped: interrupted", "stopped (interrupted)"),
        ("failed: no space", "failed: no space"),
        ("done", "no test result"),
        ("odd", "odd"),
    ],
)
def test_a_run_without_a_result_says_so(make_run, status, word):
    found = verdict(make_run, status=status, result=None, steps=12)
    assert word in found.sentence
    assert found.tone == "open"
    assert "12 of 30 steps recorded; the mean reward went from 0.118 to" in found.remarks[0]
    assert verdict(make_run, status=status, result=None, steps=0).remarks == ("No step is recorded yet.",)


def test_a_result_of_a_run_that_then_failed_keeps_both(make_run):
    found = verdict(make_run, status="failed: the page could not be written")
    assert found.tone == "better"
    assert "Status of the run: failed: the page could not be written." in found.remarks


def test_what_was_spent_comes_from_the_best_source_there_is(make_run):
    assert read_run(make_run()).ledger == RESULT["ledger"]
    data = read_run(make_run(result=changed(ledger=None), record={**RECORD, "ledger": {"seconds": 3}}))
    assert data.ledger == {"seconds": 3}
    data = read_run(make_run(result=changed(ledger=None)))
    assert data.ledger == {"forward_flops": 93 * 10**12, "evaluations": 30720, "seconds": 8.2 * 30}


@pytest.mark.parametrize(
    ("ci", "word"), [([0.02, 0.2], "better"), ([-0.02, 0.2], "no clear difference"), ([-0.2, -0.02], "worse")]
)
def test_a_run_that_began_at_an_adapter_is_held_against_it(make_run, ci, word):
    over = {"value": sum(ci) / 2, "ci": ci, "p": 0.01}
    result = {**RESULT, "start": {"accuracy": 0.31, "ci": [0.25, 0.37], "n": 150}, "over_start": over}
    remark = verdict(make_run, result=result).remarks[1]
    assert remark.startswith("The adapter that the search began at: 31.0 %; the adapter is")
    assert remark.endswith(f"from there: {word}.")
    assert "The adapter that the search began at" not in str(verdict(make_run).remarks)


def test_it_says_which_state_was_kept_and_draws_the_looks(make_run):
    looks = [[0, 0.5], [2, 0.75], [4, 0.625]]
    data = read_run(make_run(result={**RESULT, "validation": {"kept": 2, "looks": looks}}))
    assert (
        "Kept is the state of step 2, the best on the validation prompts (75.0 %; 62.5 % at the end)."
        in give_verdict(data).remarks
    )
    drawn = validation_figure(*looks_of(data)).views["steps"]["data"]
    assert [drawn[0]["x"], drawn[0]["y"]] == [[0, 2, 4], [0.5, 0.75, 0.625]]
    assert [drawn[1]["x"], drawn[1]["y"]] == [[2], [0.75]]
    none_better = {"kept": 0, "looks": [[0, 0.5], [2, 0.25], [4, None]]}
    data = read_run(make_run(result={**RESULT, "validation": none_better}))
    assert any("The start was kept: no later state was better" in r for r in give_verdict(data).remarks)
    assert validation_figure(*looks_of(read_run(make_run()))) is None
