import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolora.errors import TaskError
from evolora.tasks.splits import apportion, balanced, capacities, divide, permuted, shuffled, split_of
from evolora.tasks.task import SPLITS


@given(st.integers(1, 600), st.text(max_size=5))
def test_the_permutation_without_a_list_is_a_permutation(count, key):
    assert sorted(permuted(i, count, key) for i in range(count)) == list(range(count))


def test_the_permutation_reaches_everywhere_evenly():
    first = [permuted(0, 10, f"key {k}") for k in range(2000)]
    assert all(150 < first.count(place) < 250 for place in range(10))


def test_an_index_outside_is_refused():
    with pytest.raises(IndexError):
        permuted(5, 5, "key")


def test_shuffles_differ_by_key_and_keep_every_item():
    items = [f"item {i}" for i in range(50)]
    one, two = shuffled(items, "a"), shuffled(items, "b")
    assert one != two
    assert sorted(one) == sorted(two) == sorted(items)
    assert one == shuffled(items, "a")


@given(st.integers(3, 10**9))
def test_capacities_fill_the_space_and_none_is_empty(space):
    rooms = capacities(space)
    assert sum(rooms.values()) == space
    assert min(rooms.values()) >= 1


def test_two_prompts_cannot_fill_three_splits():
    with pytest.raises(TaskError, match="2 different prompts"):
        capacities(2)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.data())
def test_apportion_is_the_most_even_sharing(rooms, data):
    total = data.draw(st.integers(0, sum(rooms)))
    given_out = apportion(total, rooms)
    assert sum(given_out) == total
    assert all(share <= room for share, room in zip(given_out, rooms, strict=True))
    # brute force: one prompt at a time to whoever has least and still has room
    greedy = [0] * len(rooms)
    for _ in range(total):
        least = min((g, i) for i, g in enumerate(greedy) if g < rooms[i])[1]
        greedy[least] += 1
    assert sorted(given_out) == sorted(greedy)


def test_apportion_refuses_more_than_there_is():
    with pytest.raises(TaskError, match="7 prompts asked for, 6 there are"):
        apportion(7, [2, 4])


def test_adding_prompts_never_moves_the_others():
    few = {f"prompt {i}": i for i in range(100)}
    many = {f"prompt {i}": i for i in range(300)}
    before, after = divide(few), divide(many)
    for split in SPLITS:
        assert set(before[split]) <= set(after[split])


@given(st.integers(3, 40))
def test_divide_gives_every_item_one_split_and_leaves_none_empty(count):
    parts = divide({f"prompt {i}": i for i in range(count)})
    assert sorted(itertools.chain(*parts.values())) == list(range(count))
    assert all(parts.values())


def test_divide_into_fewer_splits_uses_only_these():
    parts = divide({f"prompt {i}": i for i in range(200)}, ["train", "test"])
    assert set(parts) == {"train", "test"}
    assert 30 < len(parts["test"]) < 75


def test_the_shares_are_what_they_are_said_to_be():
    counts = [split_of(f"prompt {i}") for i in range(5000)]
    assert abs(counts.count("train") / 5000 - 0.6) < 0.03
    assert abs(counts.count("test") / 5000 - 0.2) < 0.03


def test_every_beginning_of_a_balanced_order_holds_the_groups_in_proportion():
    groups = {
        "a": [("a", i) for i in range(60)],
        "b": [("b", i) for i in range(30)],
        "c": [("c", 0), ("c", 1)],
    }
    order = balanced(groups, "key")
    assert sorted(order) == sorted(itertools.chain(*groups.values()))
    for size in range(1, len(order) + 1):
        for name, items in groups.items():
            share = sum(item[0] == name for item in order[:size])
            assert abs(share - size * len(items) / len(order)) <= 1.5
