import pytest

from evolora.errors import TaskError
from evolora.tasks import Example, Task, load_task
from evolora.tasks.shots import with_shots
from evolora.tasks.task import SPLITS, Message


def texts(count, answer=" yes", stop=None):
    numbers = iter(range(3 * count))
    splits = [tuple(Example(f"{next(numbers)}?", answer) for _ in range(count)) for _ in SPLITS]
    return Task("toy", *splits, max_new_tokens=3, stop=stop)


def chats(count):
    def one(i):
        return (Message("system", "Be brief."), Message("user", f"{i}?"))

    numbers = iter(range(3 * count))
    splits = [tuple(Example(one(next(numbers)), "yes") for _ in range(count)) for _ in SPLITS]
    return Task("toy", *splits, max_new_tokens=3)


def test_no_shots_leave_the_task_as_it_is():
    task = texts(3)
    assert with_shots(task, 0) is task


def test_every_prompt_is_led_by_the_first_training_prompts_which_leave_the_split():
    task = with_shots(texts(4), 2)
    assert [len(task.split(split)) for split in SPLITS] == [2, 4, 4]
    for split in SPLITS:
        for example in task.split(split):
            assert example.prompt.startswith("0? yes\n1? yes\n")
    assert task.train[0].prompt == "0? yes\n1? yes\n2?"
    assert task.stop == "\n"


def test_the_tasks_own_end_of_answers_stands_between_the_shots():
    assert with_shots(texts(3, stop=";"), 1).test[0].prompt == "0? yes;6?"


def test_chats_get_turns_after_the_system_message():
    task = with_shots(chats(3), 1)
    roles = [message.role for message in task.test[0].prompt]
    assert roles == ["system", "user", "assistant", "user"]
    assert [m.content for m in task.test[0].prompt] == ["Be brief.", "0?", "yes", "6?"]
    assert task.stop is None


@pytest.mark.parametrize("count", [-1, 3, 4])
def test_a_count_that_leaves_nothing_to_learn_from_is_refused(count):
    with pytest.raises(TaskError, match="shots"):
        with_shots(texts(3), count)


@pytest.mark.parametrize("answer", ["", "  ", " two\nlines"])
def test_answers_that_cannot_be_shown_are_refused(answer):
    with pytest.raises(TaskError, match="cannot be shown"):
        with_shots(texts(3, answer), 1)


def test_texts_and_chats_are_not_mixed():
    one, other = texts(3), chats(3)
    mixed = Task("mixed", one.train, other.validation, one.test, max_new_tokens=3)
    with pytest.raises(TaskError, match="mixed"):
        with_shots(mixed, 1)


def test_shots_are_an_option_of_any_task():
    plain, led = (load_task("strings/upper:3", train=5, validation=2, test=2, shots=k) for k in (0, 2))
    shown = "".join(f"{e.prompt}{e.answer}\n" for e in plain.train[:2])
    assert [e.prompt for e in led.test] == [shown + e.prompt for e in plain.test]
    assert [e.answer for e in led.train] == [e.answer for e in plain.train[2:]]
