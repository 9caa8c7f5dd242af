import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolora.errors import ProtocolError
from evolora.problems.schedule import batch


def stream(count, size, steps, seed=0):
    return [batch(count, size, step, seed) for step in range(steps)]


@given(st.integers(1, 30), st.integers(1, 40), st.integers(0, 3))
def test_every_epoch_holds_every_prompt_once(count, size, seed):
    steps = 4 * count // size + 1
    flat = [i for chosen in stream(count, size, steps, seed) for i in chosen]
    assert len(flat) == steps * size
    for epoch in range(len(flat) // count):
        assert sorted(flat[epoch * count : (epoch + 1) * count]) == list(range(count))


@given(st.integers(1, 30), st.data())
def test_no_batch_repeats_a_prompt_while_there_are_enough(count, data):
    size = data.draw(st.integers(1, count))
    for chosen in stream(count, size, 3 * count // size + 3):
        assert len(set(chosen)) == size


@given(st.integers(1, 12), st.integers(13, 40))
def test_a_batch_larger_than_the_data_repeats_as_evenly_as_it_can(count, size):
    for chosen in stream(count, size, 4):
        counts = [chosen.count(i) for i in range(count)]
        assert max(counts) - min(counts) <= 2


@given(st.integers(1, 50), st.integers(1, 60), st.integers(0, 10**6))
def test_a_step_far_away_is_answered_at_once_and_alike(count, size, step):
    assert batch(count, size, step, 1) == batch(count, size, step, 1)


def test_epochs_and_seeds_differ_in_order():
    first, second = batch(100, 100, 0, 0), batch(100, 100, 1, 0)
    assert first != second != batch(100, 100, 0, 1)


def test_the_first_prompt_of_an_epoch_is_spread_evenly():
    firsts = [batch(5, 5, step, 0)[0] for step in range(1000)]
    assert all(150 < firsts.count(i) < 250 for i in range(5))


@pytest.mark.parametrize(("count", "size", "step"), [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
def test_an_impossible_batch_is_refused(count, size, step):
    with pytest.raises(ProtocolError, match="no batch of"):
        batch(count, size, step, 0)
