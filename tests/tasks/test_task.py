import pickle

import pytest

from evolora.errors import TaskError
from evolora.tasks import Example, Message, Task
from evolora.tasks.task import excerpt


def examples(*prompts, answer=" yes", family="default"):
    return tuple(Example(prompt, answer, family) for prompt in prompts)


def task(train=("a",), validation=("b",), test=("c",), **more):
    return Task(
        "mine", examples(*train), examples(*validation), examples(*test), **{"max_new_tokens": 4, **more}
    )


def test_a_prompt_in_two_splits_is_named_with_both():
    with pytest.raises(TaskError, match=r'mine: the prompt "shared one" stands in both train and test'):
        task(train=("a", "shared one"), test=("c", "shared one"))


def test_the_same_chat_in_two_splits_is_found_too():
    chat = (Message("user", "hello"),)
    with pytest.raises(TaskError, match=r"user: hello.*validation and test"):
        task(validation=(chat,), test=((Message("user", "hello"),),))


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_an_empty_split_is_named(split):
    with pytest.raises(TaskError, match=f"the split {split} is empty"):
        task(**{split: ()})


def test_an_answer_needs_at_least_one_token():
    with pytest.raises(TaskError, match="max_new_tokens is 0"):
        task(max_new_tokens=0)


def test_an_unknown_split_is_refused_with_the_known_ones():
    with pytest.raises(TaskError, match='no split is named "dev"; use one of train, validation, test'):
        task().split("dev")


def test_families_are_sorted_and_come_from_all_splits():
    mixed = Task("m", examples("a", family="x"), examples("b", family="z"), examples("c", family="y"), 4)
    assert mixed.families == ("x", "y", "z")


def test_the_fingerprint_changes_with_any_content_and_with_columns():
    base = task().fingerprint
    assert base == task().fingerprint
    assert base != task(train=("a", "d")).fingerprint
    assert base != Task("mine", examples("a", answer=" no"), examples("b"), examples("c"), 4).fingerprint
    assert base != Task("mine", examples("a", family="f"), examples("b"), examples("c"), 4).fingerprint

    def with_columns(**columns):
        train = (Example("a", " yes", columns=columns),)
        return Task("mine", train, examples("b"), examples("c"), 4).fingerprint

    found = [base, with_columns(k=1), with_columns(k=2), with_columns(other=1), with_columns(k={1j})]
    assert len(set(found)) == len(found)
    assert with_columns(a=1, b=2) == with_columns(b=2, a=1)


def test_examples_hash_and_travel_between_processes():
    example = Example((Message("user", "hi"),), "hello", columns={"k": [1]})
    assert pickle.loads(pickle.dumps(example)) == example
    assert hash(example) == hash(Example((Message("user", "hi"),), "hello", columns={"k": [1]}))


def test_excerpts_are_one_short_line():
    assert excerpt("a\nb  c") == '"a b c"'
    assert len(excerpt("x" * 500)) == 62
