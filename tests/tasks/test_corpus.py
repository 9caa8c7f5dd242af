import pytest

from evolora.errors import TaskError
from evolora.tasks import load_task


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(
        " ".join(f"w{number}\n" if number % 7 == 0 else f"w{number}" for number in range(48 * 100))
    )
    return path


def test_passages_are_taken_letter_for_letter(text):
    task = load_task(f"corpus:{text}")
    whole = text.read_text()
    examples = [example for split in ("train", "validation", "test") for example in task.split(split)]
    assert len(examples) == 100
    assert all(example.prompt + example.answer in whole for example in examples)
    assert all(len(example.prompt.split()) == 16 for example in examples)
    assert task.reward == "logprob"
    assert any("\n" in example.answer for example in examples)


def test_neighbours_share_a_split(text):
    task = load_task(f"corpus:{text}")
    at = {
        split: {int(e.prompt.split()[0][1:]) // 48 for e in task.split(split)} for split in ("train", "test")
    }
    blocks = {split: {place // 20 for place in places} for split, places in at.items()}
    assert not blocks["train"] & blocks["test"]


def test_a_repeated_prompt_is_left_out_and_the_seed_moves_nothing_between_splits(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("one two three four " * 12 * 50)
    with pytest.raises(TaskError, match="1 different prompts cannot fill"):
        load_task(f"corpus:{path}")
    path.write_text(" ".join(f"w{number % 4000}" for number in range(48 * 200)))
    one, two = (load_task(f"corpus:{path}", seed=seed) for seed in (0, 1))
    assert {e.prompt for e in one.test} == {e.prompt for e in two.test}
    assert [e.prompt for e in one.train] != [e.prompt for e in two.train]


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"one two", "2 words are 0 passages"), (b"\xff\xfe\x00a b", "not UTF-8"), (b"", "0 words")],
)
def test_what_is_no_text_is_refused(tmp_path, content, words):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(TaskError, match=words):
        load_task(f"corpus:{path}")
    with pytest.raises(TaskError, match="no such file"):
        load_task("corpus:nowhere.txt")
