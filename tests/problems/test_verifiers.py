import math
from decimal import Decimal
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evolora.errors import ProtocolError, RewardError
from evolora.problems import load_reward, reward_names
from evolora.problems.verifiers import last_number


def judge(spec, completion, answer):
    return load_reward(spec)(["p"], [completion], [answer], {})[0]


@pytest.mark.parametrize(
    ("spec", "completion", "answer", "right"),
    [
        ("exact", " Africa", " Africa", 1),
        ("exact", "Africa\n", " Africa", 1),
        ("exact", "africa", "Africa", 0),
        ("exact", "Africa.", "Africa", 0),
        ("exact", "", "Africa", 0),
        ("exact", "a  b", "a b", 0),
        ("numeric", "so the answer is 42.", "#### 42", 1),
        ("numeric", "1 + 1 = 3", "2", 0),
        ("numeric", "about 1,234.50 dollars", "1234.5", 1),
        ("numeric", "-7", "-7", 1),
        ("numeric", "\u22127", "-7", 1),
        ("numeric", "5-3", "3", 1),
        ("numeric", "x = -3", "3", 0),
        ("numeric", "19.0", "19", 1),
        ("numeric", ".5", "0.5", 1),
        ("numeric", "2e3", "2000", 1),
        ("numeric", "v2 of 10", "10", 1),
        ("numeric", "none", "4", 0),
        ("numeric", "", "4", 0),
        ("numeric", "0.33", "1/3", 0),
        ("numeric", "1" * 5000, "2", 0),
        ("contains", "It is in africa, I think", "Africa", 1),
        ("contains", "190", "19", 0),
        ("contains", "a woman", "man", 0),
        ("contains", "19, perhaps", "19", 1),
        ("contains", "x (a+b) y", "(a+b)", 1),
        ("contains", "x", "Africa", 0),
        (r"regex:^\d+$", "42", "ignored", 1),
        (r"regex:^\d+$", "42x", "ignored", 0),
        (r"regex:####\s*(\S+)", "#### 1 then #### 7", "7", 1),
        (r"regex:####\s*(\S+)", "#### 1 then #### 7", "1", 0),
        (r"regex:####\s*(\S+)", "7", "7", 0),
        (r"regex:(a)?b", "b", "a", 0),
    ],
)
def test_verdicts(spec, completion, answer, right):
    assert judge(spec, completion, answer) == right


@given(
    st.decimals(-(10**9), 10**9, places=3),
    st.sampled_from(["{}", "= {}", "it is {}.", "${} in all", "1 2 {}"]),
)
def test_a_number_is_found_however_it_is_written(number, frame):
    for text in (f"{number:f}", f"{number:,f}"):
        assert last_number(frame.format(text)) == Decimal(f"{number:f}")


@given(st.text())
def test_no_text_breaks_a_verifier(text):
    for spec in ("exact", "numeric", "contains"):
        assert judge(spec, text, "12") in (0, 1)


@pytest.mark.parametrize(
    ("spec", "answer"), [("exact", " "), ("contains", ""), ("numeric", "many"), ("regex:(a)", "")]
)
def test_an_answer_that_cannot_be_judged_against_is_nan_and_counted(spec, answer):
    reward = load_reward(spec)
    assert math.isnan(reward(["p"], ["x"], [answer], {})[0])
    assert reward.failures == {"answer": 1}
    assert reward.unusable(answer)


def test_exact_and_logprob_are_read_off_scores():
    scores = SimpleNamespace(
        log_likelihood=torch.tensor([[-6.0, -float("inf")]]),
        exact=torch.tensor([[True, False]]),
        tokens=torch.tensor([3, 2]),
    )
    assert load_reward("exact").from_scores(scores).tolist() == [[1, 0]]
    logprob = load_reward("logprob")
    values = logprob.from_scores(scores)
    assert values[0, 0] == -2
    assert math.isnan(values[0, 1])
    assert logprob.failures == {"not_finite": 1}
    with pytest.raises(ProtocolError, match="read off scores"):
        logprob(["p"], ["c"], ["a"], {})
    with pytest.raises(ProtocolError, match="judges completions"):
        load_reward("numeric").from_scores(scores)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("exakt", r'no reward is named "exakt"; did you mean exact\? known are exact, numeric'),
        ("regex:(", r"regex:\(: not a regular expression"),
        ("reward.py", "no function is named; write reward.py:FUNCTION"),
        ("nowhere.py:f", "nowhere.py: there is no such file"),
    ],
)
def test_a_wrong_specification_is_refused_with_a_mend(spec, message):
    with pytest.raises(RewardError, match=message):
        load_reward(spec)


def test_a_reward_comes_back_as_it_is_and_names_load_again():
    reward = load_reward("regex:a+")
    assert load_reward(reward) is reward
    assert load_reward(reward.name).name == "regex:a+"


def test_every_reward_is_listed_with_one_line():
    names = dict(reward_names())
    assert {"exact", "numeric", "contains", "logprob", "regex:PATTERN", "FILE.py:FUNCTION"} == set(names)
    assert all(line and "``:" not in line for line in names.values())
