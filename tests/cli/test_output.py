import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolora.cli.output import emit, interval, percent, plain, table
from evolora.cli.story import pick, points, verdict

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), values, max_size=3))
def test_plain_values_are_strict_json(value):
    text = json.dumps(plain(value), allow_nan=False)
    assert plain(value) == json.loads(text)


def test_arrays_numbers_paths_and_tuples_become_plain():
    found = plain({"a": np.float32(0.5), "b": np.array([1.0, np.nan]), "c": Path("x"), "d": (1, math.inf)})
    assert found == {"a": 0.5, "b": [1.0, None], "c": "x", "d": [1, None]}


def test_emit_prints_one_line(capsys):
    emit({"text": "two\nlines é", "n": 1})
    assert capsys.readouterr().out == '{"text": "two\\nlines \\u00e9", "n": 1}\n'


def test_a_table_shows_markup_as_it_is(capsys):
    table("T", ("a", "b"), [("[red]x[/red]", None)])
    assert "[red]x[/red]" in capsys.readouterr().out


def test_fractions_read_as_percentages():
    assert (percent(0.125), percent(None), percent(math.nan)) == ("12.5 %", "-", "-")
    assert (interval((0.1, 0.25)), interval((None, None))) == ("[10.0, 25.0]", "-")
    assert (points(0.031), points(-0.2)) == ("+3.1", "-20.0")


@pytest.mark.parametrize(
    ("ci", "word"),
    [
        ((0.01, 0.2), "better"),
        ((-0.2, -0.01), "worse"),
        ((-0.1, 0.1), "no clear difference"),
        ((0, 0.1), "no clear difference"),
    ],
)
def test_a_gain_is_better_only_with_its_interval_above_zero(ci, word):
    assert verdict(ci) == word


def test_samples_show_a_loss_if_there_is_one():
    samples = [{"n": i, "base_correct": i == 7, "adapted_correct": i < 5} for i in range(9)]
    assert [sample["n"] for sample in pick(samples)] == [0, 1, 7]
    assert [sample["n"] for sample in pick(samples[:4])] == [0, 1, 2]
    assert len(pick(samples[5:7])) == 2
