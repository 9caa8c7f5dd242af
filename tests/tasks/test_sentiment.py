import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from evolora.errors import TaskError
from evolora.tasks import load_task

SHARED = (
    Path(os.environ.get("EVOLORA_DATA", Path(__file__).parents[3] / "shared" / "data")) / "sentiment.jsonl"
)


@pytest.fixture
def hub(monkeypatch):
    def install(load_dataset):
        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))

    return install


def test_a_local_file_gives_the_documented_form(tmp_path):
    path = tmp_path / "s.jsonl"
    texts = [("good film", 1, "train"), (" bad film ", 0, "validation"), ("fine", "positive", "test")]
    path.write_text("\n".join(json.dumps({"sentence": s, "label": y, "split": p}) for s, y, p in texts))
    task = load_task(f"sentiment:{path}")
    assert (task.train[0].prompt, task.train[0].answer) == ("Review: good film\nSentiment:", " positive")
    assert (task.validation[0].prompt, task.validation[0].answer) == (
        "Review: bad film\nSentiment:",
        " negative",
    )
    assert task.test[0].answer == " positive"
    assert task.name == f"sentiment:{path}"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"sentence": "a", "label": 2}, r"s\.jsonl:1: the label is 2"),
        ({"sentence": "a", "label": True}, "the label is True"),
        ({"sentence": "a", "label": [1]}, "the label is"),
        ({"sentence": "a"}, "the label is None"),
        ({"label": 1}, 'the key "sentence" is missing'),
        ({"sentence": " ", "label": 1}, "the sentence is empty"),
    ],
)
def test_a_bad_row_is_named(tmp_path, row, message):
    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(TaskError, match=message):
        load_task(f"sentiment:{path}")


def test_without_the_library_the_way_out_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(TaskError, match=r"\"datasets\" is not installed; pip install .*sentiment:PATH"):
        load_task("sentiment")


def test_without_network_the_way_out_is_named(hub):
    def fails(name):
        raise ConnectionError("no route to host\nmore")

    hub(fails)
    with pytest.raises(TaskError, match=r"ConnectionError: no route to host\).*sentiment:PATH") as caught:
        load_task("sentiment")
    assert caught.value.exit_code == 2


def test_the_hub_validation_is_the_test_and_leaves_no_trace_in_train(hub):
    held_out = [{"sentence": f"test {i} ", "label": i % 2} for i in range(20)]
    train = [{"sentence": f"phrase {i}", "label": i % 2, "idx": i} for i in range(400)]
    train += [{"sentence": "test 3", "label": 1}, {"sentence": "phrase 7", "label": 1}]
    hub(lambda name: {"train": train, "validation": held_out})
    task = load_task("sentiment")
    assert len(task.test) == 20
    assert 5 <= len(task.validation) <= 40
    assert len(task.train) + len(task.validation) == 400
    assert "1 rows repeat" in task.warnings[0]


@pytest.mark.skipif(not SHARED.exists(), reason="the sentiment data are not beside the repository")
def test_the_whole_corpus_loads_with_its_own_splits():
    task = load_task(f"sentiment:{SHARED}")
    assert (len(task.train), len(task.validation), len(task.test)) == (8662, 1000, 1000)
    assert {e.answer for e in task.test} == {" positive", " negative"}
    small = load_task(f"sentiment:{SHARED}", seed=1, train=100, test=50)
    assert (len(small.train), len(small.test)) == (100, 50)
