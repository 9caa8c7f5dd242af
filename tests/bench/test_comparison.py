from types import SimpleNamespace

import pytest
import torch

from evolora.bench.comparison import Comparison

FLOAT = SimpleNamespace(dtype=torch.float32, device=torch.device("cpu"))
HALF = SimpleNamespace(dtype=torch.bfloat16, device=torch.device("cpu"))
LOGITS = torch.tensor([[[1.0, 10.0]], [[3.0, 4.0]]])


def test_results_within_the_tolerance_of_the_largest_agree():
    match = Comparison(FLOAT)
    match.add("ours", lambda: LOGITS)
    match.add("close", lambda: LOGITS + 9e-4)
    assert match.agree is True
    match.add("off", lambda: LOGITS + 1.1e-3)
    assert match.agree is False
    assert match.reasons == {"off": "its results differ from ours"}
    match.add("close again", lambda: LOGITS)
    assert match.agree is False


def test_a_contestant_that_ran_fewer_members_is_compared_on_these():
    match = Comparison(FLOAT)
    match.add("ours", lambda: LOGITS)
    match.add("part", lambda: LOGITS[:1])
    assert match.agree is True


def test_texts_must_be_equal():
    match = Comparison(FLOAT)
    match.add("ours", lambda: [["a", "b"], ["c", "d"]])
    match.add("part", lambda: [["a", "b"]])
    assert match.agree is True
    match.add("other", lambda: [["a", "x"]])
    assert match.agree is False


def test_nothing_is_compared_in_half_precision_or_where_another_thing_is_computed():
    for base, compare in ((HALF, True), (FLOAT, False)):
        match = Comparison(base)
        match.add("ours", lambda: LOGITS)
        match.add("other", lambda: LOGITS + 1, compare=compare)
        assert match.agree is None


@pytest.mark.parametrize("where", ["making", "running"])
def test_a_contestant_that_fails_is_left_out_with_the_reason(where):
    match = Comparison(FLOAT)
    match.add("ours", lambda: LOGITS)

    def fall():
        raise ValueError("no mixed batch\nof this")

    if where == "making":
        with match.making("peer"):
            fall()
    else:
        match.add("peer", fall)
    timings = match.run(2)
    assert match.reasons == {"peer": "ValueError: no mixed batch"}
    assert set(timings.seconds) == {"ours"}
    assert len(timings.seconds["ours"]) == 2


def test_partial_work_is_scaled_to_the_whole(monkeypatch):
    import time

    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "process_time", lambda: now[0])

    def tick():
        now[0] += 1.0
        return LOGITS

    match = Comparison(FLOAT)
    match.add("ours", tick)
    match.add("quarter", tick, of=4.0)
    assert match.run(3).ratio("quarter", "ours") == 4.0
