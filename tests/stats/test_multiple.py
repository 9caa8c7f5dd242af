import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolora.errors import ProtocolError
from evolora.stats import holm


def rejected(p_values, level):
    """Holm 1979 as it is told: step down from the smallest, stop at the first that is not small enough."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    out = set()
    for rank, index in enumerate(order):
        if p_values[index] > level / (len(p_values) - rank):
            break
        out.add(index)
    return out


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.sampled_from([0.01, 0.05, 0.2, 0.5]))
def test_it_rejects_what_the_step_down_procedure_rejects(p_values, level):
    found = {i for i, p in enumerate(holm(p_values)) if p <= level}
    for index in found ^ rejected(p_values, level):  # a rounding apart at most
        assert holm(p_values)[index] == pytest.approx(level)


def test_by_hand():
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([]) == []


def test_true_hypotheses_are_rejected_as_rarely_as_promised():
    rng = np.random.default_rng(0)
    wrong = sum(min(holm(rng.random(6))) <= 0.05 for _ in range(2000))
    assert wrong / 2000 == pytest.approx(0.05, abs=0.015)


def test_what_is_no_p_value_is_refused():
    for values in ([0.5, 1.5], [float("nan")]):
        with pytest.raises(ProtocolError, match="between 0 and 1"):
            holm(values)
