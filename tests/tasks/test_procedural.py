from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolora.errors import TaskError
from evolora.tasks import load_task
from evolora.tasks.arith import ARITH
from evolora.tasks.lists import LISTS
from evolora.tasks.procedural import arrangement, arrangements
from evolora.tasks.strings import STRINGS, WORDS

SUBTASKS = (*LISTS, *STRINGS, *ARITH)
CHECKS = {
    "sort": lambda a: " ".join(sorted(a)),
    "reverse": lambda a: " ".join(a[::-1]),
    "rotate": lambda a: " ".join([*a[1:], a[0]]),
    "last": lambda a: a[-1],
    "upper": lambda a: " ".join(a).upper(),
    "lower": lambda a: " ".join(a).lower(),
    "initials": lambda a: " ".join(word[0] for word in a),
    "shift": lambda a: " ".join(chr((ord(x) - 96) % 26 + 97) for x in a),
    "add": lambda a: str(int(a[0]) + int(a[1])),
    "sub": lambda a: str(int(a[0]) - int(a[1])),
    "mul": lambda a: str(int(a[0]) * int(a[1])),
}


def split_prompt(example):
    name, arguments = example.prompt.removesuffix(" ->").split(": ")
    return name, arguments.split()


@pytest.mark.parametrize("subtask", SUBTASKS, ids=lambda s: s.name)
@given(data=st.data())
def test_every_prompt_has_the_documented_form_and_the_right_answer(subtask, data):
    size = data.draw(st.sampled_from(list(subtask.sizes)))
    example = subtask.example(size, data.draw(st.integers(0, subtask.space(size) - 1)))
    name, arguments = split_prompt(example)
    assert example.prompt == f"{name}: {' '.join(arguments)} ->"
    assert (name, example.family) == (subtask.name, subtask.family)
    assert example.answer == f" {CHECKS[name](arguments)}"
    assert "-" not in example.answer
    count = sum(map(len, arguments)) if subtask.family == "arith" else len(arguments)
    assert count == size


@pytest.mark.parametrize("subtask", SUBTASKS, ids=lambda s: s.name)
def test_the_declared_space_is_the_number_of_different_prompts(subtask):
    for size in subtask.sizes:
        space = subtask.space(size)
        if space <= 20_000:
            prompts = {subtask.example(size, number).prompt for number in range(space)}
            assert len(prompts) == space


def test_the_spaces_are_those_of_the_definition():
    by_name = {s.name: s for s in SUBTASKS}
    assert by_name["sort"].space(4) == 26 * 25 * 24 * 23
    assert by_name["initials"].space(3) == prod(len(WORDS) - i for i in range(3))
    assert by_name["add"].space(2) == 100
    assert by_name["add"].space(3) == 900
    assert by_name["sub"].space(2) == 55
    assert by_name["sub"].space(4) == 90 * 91 // 2
    assert len(set(WORDS)) == len(WORDS)


@given(st.integers(1, 6), st.data())
def test_arrangements_are_numbered_without_repetition(count, data):
    size = data.draw(st.integers(1, count))
    items = "abcdef"[:count]
    seen = {tuple(arrangement(items, size, i)) for i in range(arrangements(count, size))}
    assert len(seen) == arrangements(count, size)
    assert all(len(set(letters)) == size for letters in seen)


def test_the_formats_are_those_that_were_measured():
    task = load_task("lists/sort:3+lists/reverse+strings/upper:2+strings/initials+strings/shift+arith/add:3")
    forms = {
        "sort": r"sort: [a-z] [a-z] [a-z] ->",
        "reverse": r"reverse: [a-z] [a-z] [a-z] [a-z] ->",
        "upper": r"upper: [a-z] [a-z] ->",
        "initials": r"initials: [a-z]+ [a-z]+ [a-z]+ ->",
        "shift": r"shift: [a-z] [a-z] [a-z] ->",
        "add": r"add: [1-9][0-9] [0-9] ->",
    }
    import re

    for example in task.test:
        assert re.fullmatch(forms[example.columns["subtask"]], example.prompt)


@given(
    st.sampled_from(
        ["arith/add:2", "arith/sub:2", "arith", "lists", "strings/shift:2", "lists/sort+arith/mul:2"]
    ),
    st.integers(0, 5),
    st.integers(1, 20),
    st.integers(1, 11),
    st.integers(1, 11),
)
def test_splits_are_disjoint_full_and_without_duplicates_for_any_sizes(spec, seed, train, validation, test):
    task = load_task(spec, seed, train=train, validation=validation, test=test)
    prompts = [e.prompt for split in ("train", "validation", "test") for e in task.split(split)]
    assert len(set(prompts)) == len(prompts) == train + validation + test
    assert task == load_task(spec, seed, train=train, validation=validation, test=test)


@pytest.mark.parametrize("spec", ["arith/add:2", "lists/sort:3", "strings"])
def test_no_test_prompt_of_one_seed_is_a_training_prompt_of_another(spec):
    test = {e.prompt for e in load_task(spec, 1).test}
    train = {e.prompt for e in load_task(spec, 2).train}
    assert not test & train


def test_the_seed_chooses_other_prompts_of_the_same_split():
    one, two = load_task("lists/sort", 1), load_task("lists/sort", 2)
    assert {e.prompt for e in one.train} != {e.prompt for e in two.train}


def test_a_tiny_space_is_used_whole_and_never_more():
    task = load_task("arith/add:2")
    assert (len(task.train), len(task.validation), len(task.test)) == (60, 20, 20)
    with pytest.raises(
        TaskError, match=r"61 train prompts asked for, but the split has 60; ask for at most 60"
    ):
        load_task("arith/add:2", train=61)
    with pytest.raises(TaskError, match="0 test prompts"):
        load_task("arith/add:2", test=0)


def test_a_family_is_shared_evenly_by_its_operations():
    task = load_task("lists", train=40)
    counts = [sum(e.columns["subtask"] == s.name for e in task.train) for s in LISTS]
    assert counts == [10, 10, 10, 10]
    assert task.families == ("lists",)


def test_where_one_operation_runs_out_the_others_fill_up():
    task = load_task("arith/add:2+arith/mul", train=300)
    counts = [sum(e.columns["subtask"] == name for e in task.train) for name in ("add", "mul")]
    assert counts == [60, 240]


def test_answers_fit_in_the_tokens_allowed_even_letter_by_letter():
    for spec in ("lists", "strings", "arith"):
        task = load_task(spec)
        assert task.max_new_tokens > max(len(e.answer) for e in task.test)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lsts", r'no task is named "lsts"; did you mean lists\? known are demo, .*sentiment:PATH'),
        ("lists/srt", r"did you mean lists/sort\?"),
        ("lists:4", "goes with one operation, not with a family"),
        ("lists/sort:x", 'the size "x" is not a whole number'),
        ("lists/sort:²", "is not a whole number"),
        ("lists/sort:99", "size 99 does not exist; choose one from 2 to 10"),
        ("lists+foo", 'no task is named "foo"'),
        ("lists+lists/sort", "lists/sort:4 is named twice"),
        ("", 'no task is named ""'),
        ("\0", "no task is named"),
    ],
)
def test_a_wrong_specification_is_refused_with_a_mend(spec, message):
    with pytest.raises(TaskError, match=message):
        load_task(spec)
