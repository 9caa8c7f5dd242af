import pytest

from evolora.engine import Engine, load_base
from evolora.errors import TaskError
from evolora.problems import Problem, answer_length, load_reward
from evolora.tasks import Example, Message, Task


@pytest.fixture(scope="module")
def base(model_folder):
    return load_base(str(model_folder))


def task(answer=" yes", most=8, prompt="p", **more):
    splits = [(Example(f"{prompt} {name}", " yes"),) for name in ("train", "validation")]
    return Task("mine", *splits, (Example(f"{prompt} test", answer),), most, **more)


def check(base, mine, reward="exact", **options):
    problem = Problem(Engine(base), mine, load_reward(reward), 1, **options)
    problem.check_texts()
    return problem


def test_every_answer_has_room_where_each_digit_is_a_token(base):
    assert check(base, task(" " + "7" * 40)).max_new_tokens == 41 + 1 + 2
    assert answer_length(base, task(" " + "7" * 40, most=100)) == 100
    assert check(base, task(" " + "7" * 40), max_new_tokens=41).max_new_tokens == 41


def test_answers_of_any_split_count_and_empty_ones_do_not(base):
    splits = [(Example(name, answer),) for name, answer in (("a", "x" * 30), ("b", ""), ("c", ""))]
    assert answer_length(base, Task("mine", *splits, 1)) == 33
    assert answer_length(base, Task("mine", *[(Example(n, ""),) for n in "abc"], 1)) == 3


def test_the_room_ends_where_the_model_does(base):
    mine = task("x" * 150, prompt="p" * 100)
    assert answer_length(base, mine) == base.max_length - len("p" * 100 + " validation")


def test_chats_are_measured_as_they_are_rendered(base, monkeypatch):
    monkeypatch.setattr(base, "render", lambda messages: "c" * 200, raising=False)
    chat = (Example((Message("user", "hi"),), "x" * 100),)
    assert answer_length(base, Task("mine", chat, *[(Example(n, "x"),) for n in "ab"], 4)) == 56


@pytest.mark.parametrize(
    ("answer", "stop", "reason"),
    [
        (" one\nB: two", "\n", r"it holds '\\n', where answers end; choose another stop"),
        ("\nyes", "\n", r"it holds '\\n'"),
        (" a<eos>b", None, "it holds '<eos>', which ends a text; take that out"),
        (" yes<eos>", None, "which ends a text"),
    ],
)
def test_an_answer_that_no_completion_can_equal_is_refused_with_its_prompt(base, answer, stop, reason):
    with pytest.raises(TaskError, match=rf'mine \(test\): the answer to "p test" .*{reason}') as caught:
        check(base, task(answer, stop=stop))
    assert "\n" not in str(caught.value)
    assert caught.value.mend
    assert check(base, task(answer, stop=stop), teacher_forced=False).scored is False


def test_an_answer_longer_than_completions_is_refused(base):
    with pytest.raises(TaskError, match="it has 4 tokens, and completions end after 3"):
        check(base, task(), max_new_tokens=3)


@pytest.mark.parametrize("answer", [" yes\n", " yes\n\n", " yes"])
def test_an_answer_that_ends_with_the_stop_is_fine(base, answer):
    check(base, task(answer, stop="\n"))


def test_likelihoods_are_of_any_text(base):
    check(base, task(" one\ntwo", stop="\n"), "logprob")
