import errno
import json
import math
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolora.errors import ProtocolError, RunError
from evolora.runs import Journal

plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
entries = st.lists(st.dictionaries(st.text(), plain_values, max_size=4), max_size=4)


@given(entries)
@settings(max_examples=60, deadline=None)
def test_what_was_appended_is_read_back_to_the_bit(tmp_path_factory, written):
    journal = Journal(tmp_path_factory.mktemp("j") / "journal.jsonl")
    for entry in written:
        journal.append(entry)
    journal.close()
    assert repr(journal.read()) == repr(written)
    if written:
        assert journal.path.read_bytes().count(b"\n") == len(written)


def test_numbers_without_a_value_are_null_and_each_line_is_strict_json(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append({"step": 1, "a": float("nan"), "b": [float("inf")], "c": -0.0})
    entry = json.loads(journal.path.read_text(), parse_constant=pytest.fail)
    assert entry["a"] is None
    assert entry["b"] == [None]
    assert math.copysign(1, entry["c"]) == -1


def test_a_journal_torn_at_any_byte_keeps_its_whole_lines_and_goes_on(tmp_path):
    path = tmp_path / "journal.jsonl"
    whole = Journal(path)
    for step in range(1, 4):
        whole.append({"step": step, "text": "é\n"})
    whole.close()
    data = path.read_bytes()
    ends = [i for i, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        complete = sum(cut >= end for end in ends)  # a line that lacks only its newline is complete
        journal = Journal(path)
        assert [entry["step"] for entry in journal.read()] == list(range(1, complete + 1))
        journal.append({"step": 9})
        journal.close()
        assert [entry["step"] for entry in Journal(path).read()] == [*range(1, complete + 1), 9]


def test_a_resumed_journal_equals_one_that_never_stopped(tmp_path):
    straight, resumed = Journal(tmp_path / "straight.jsonl"), Journal(tmp_path / "resumed.jsonl")
    steps = [{"step": s, "reward_mean": 1 / (s + 1)} for s in range(1, 9)]
    for entry in steps:
        straight.append(entry)
    for entry in steps[:6]:
        resumed.append(entry)
    with open(resumed.path, "ab") as file:
        file.write(b'{"step": 7, "rew')
    assert resumed.truncate_after(4) == 4
    for entry in steps[4:]:
        resumed.append(entry)
    assert resumed.path.read_bytes() == straight.path.read_bytes()
    assert Journal(resumed.path).truncate_after(-1) == 0
    assert resumed.path.read_bytes() == b""


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_text('{"step": 1}\noops\n{"step": 3}\n')
    with pytest.raises(RunError, match="line 2"):
        Journal(path).read()


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append({"step": 1})
    before = journal.path.read_bytes()
    real = os.write

    def half(handle, data):
        if len(data) < 9:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, bytes(data)[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(RunError, match="No space left"):
        journal.append({"step": 2, "text": "x" * 50})
    monkeypatch.undo()
    assert journal.path.read_bytes() == before
    journal.append({"step": 2})
    assert [entry["step"] for entry in journal.read()] == [1, 2]


def test_what_json_cannot_hold_is_refused_by_name_and_writes_nothing(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    with pytest.raises(ProtocolError, match=r"journal\.extra\[1\].*set"):
        journal.append({"extra": [1, {2}]})
    with pytest.raises(ProtocolError, match="key 3"):
        journal.append({"extra": {3: 1}})
    assert journal.read() == []
