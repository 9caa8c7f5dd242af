import re
from collections import Counter

import pytest

from evolora.engine import load_base
from evolora.errors import TaskError
from evolora.tasks import load_task
from evolora.tasks.retrieval import RETRIEVAL


def found_by_reading(prompt):
    """The answer by looking it up, sentence by sentence."""
    text, question = prompt.rsplit("\n", 1)
    words = dict(re.findall(r"The word of (\w+) is (\w+)\.", text))
    friends = dict(re.findall(r"The friend of (\w+) is (\w+)\.", text))
    if question == "Most people like the":
        ((word, most), (_, next_most), *_) = Counter(re.findall(r"likes the (\w+)\.", text)).most_common()
        assert (most, next_most) == (5, 2)
        return word
    *_, name, _ = question.split()
    if "friend" in question:
        assert name not in words
        return words[friends[name]]
    return words[name]


@pytest.mark.parametrize("subtask", RETRIEVAL, ids=lambda s: s.name)
def test_the_answer_can_be_read_in_the_text(subtask):
    for size in (128, 500, 2048):
        for number in range(20):
            example = subtask.example(size, number)
            assert example.answer == " " + found_by_reading(example.prompt)
            assert example.prompt.count(".") == len(re.findall(r"\.( |$|\n)", example.prompt))


def test_splits_share_no_prompt_and_answers_end_at_the_full_stop():
    task = load_task("retrieval", seed=3, train=60, validation=30, test=30)
    prompts = [example.prompt for split in ("train", "validation", "test") for example in task.split(split)]
    assert len(set(prompts)) == 120
    assert task.stop == "."
    assert {example.columns["subtask"] for example in task.train} == {"needle", "hop", "majority"}
    with pytest.raises(TaskError, match="end differently"):
        load_task("retrieval/needle+lists/sort")


@pytest.mark.model
@pytest.mark.parametrize("size", [256, 1024])
def test_the_size_is_the_length_in_tokens_of_the_bundled_model(size):
    text = load_base("smollm2-135m").text
    examples = load_task(f"retrieval/hop:{size}", train=1, validation=1, test=20).test
    lengths = [len(ids) for ids in text.prompts([example.prompt for example in examples])]
    assert max(lengths) < 1.1 * size
    assert min(lengths) > 0.95 * size
