import pytest

from evolora.cli.story import again, mark, points, tell, verdict
from evolora.config import AdaptConfig

CONFIG = AdaptConfig(task="my task.jsonl", stop="\n", seed=3)
PART = {"accuracy": -6.8, "ci": [-7.2, -6.4], "n": 10}
RESULT = {
    "task": "my task.jsonl",
    "reward": "logprob",
    "steps": 3,
    "method": "eggroll",
    "base": PART,
    "adapted": {**PART, "accuracy": -5.1},
    "difference": {"value": 1.7, "ci": [1.2, 2.1]},
    "samples": [
        {
            "prompt": "p",
            "answer": "c",
            "base": "a",
            "adapted": "b",
            "base_correct": -6.8,
            "adapted_correct": None,
        },
    ],
    "adapter": "run/adapter",
}


def test_graded_rewards_are_numbers_not_percentages_or_ticks(capsys):
    tell(RESULT, CONFIG)
    text = capsys.readouterr().out
    assert "-6.800" in text
    assert "+1.700" in text
    assert "[1.200, 2.100]" in text
    assert "✓" not in text
    assert "✗" not in text
    assert "? b" in text


def test_the_next_command_measures_what_was_reported():
    assert again(RESULT, CONFIG) == (
        "evolora evaluate --model smollm2-135m --task 'my task.jsonl' --reward logprob "
        "--stop '\\n' --seed 3 run/adapter"
    )


def test_the_next_command_asks_the_same_prompts():
    config = CONFIG.model_copy(update={"train": 9, "test": 7, "shots": 2, "max_new_tokens": 5})
    assert "--shots 2 --train 9 --test 7 --max-new-tokens 5 --seed 3" in again(RESULT, config)


def test_it_says_which_state_was_kept(capsys):
    looks = [[0, 0.5], [2, 0.75], [4, 0.625]]
    tell({**RESULT, "reward": "exact", "validation": {"kept": 2, "looks": looks}}, CONFIG)
    assert (
        "Kept is the state of step 2, the best on the validation prompts (75.0 %; 62.5 % at the end)"
        in capsys.readouterr().out
    )
    tell({**RESULT, "reward": "exact", "validation": {"kept": 0, "looks": looks[:1] + looks[2:]}}, CONFIG)
    assert (
        "The start was kept: no later state was better on the validation prompts" in capsys.readouterr().out
    )


def test_it_says_what_was_learned_from(capsys):
    tell({**RESULT, "method": "adamw", "steps": 1}, CONFIG)
    assert "my task.jsonl from its answers, judged by logprob, 1 step of adamw" in capsys.readouterr().out


def test_a_long_prompt_shows_its_question_and_the_wanted_answer(capsys):
    sample = {**RESULT["samples"][0], "prompt": "solved " * 40 + "Q: the question", "answer": " 42"}
    tell({**RESULT, "samples": [sample]}, CONFIG)
    text = capsys.readouterr().out
    assert "Q: the question" in text
    assert "wanted     42" in text


def test_diagnostics_are_told_where_there_are_any(capsys):
    found = {"divergence": {"off_task": {"to_base": 0.0213}}, "walk": {"ratio": 1.04}}
    tell({**RESULT, "diagnostics": found}, CONFIG)
    text = " ".join(capsys.readouterr().out.split())
    assert "Length against a random walk 1.04" in text
    assert "KL to the base off task 0.0213 nats a token" in text
    tell(RESULT, CONFIG)
    assert "beside the task" not in capsys.readouterr().out


@pytest.mark.parametrize(("reward", "sign"), [(1.0, "✓"), (0.0, "✗"), (None, "?"), (float("nan"), "?")])
def test_marks(reward, sign):
    assert mark(reward) == sign


def test_what_was_not_judged_is_said_so():
    assert verdict([None, None]) == "could not be judged"
    assert points(None) == "-"
