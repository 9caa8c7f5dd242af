"""The guard: the best validation state stays, a plateau ends a search, a fall brings the best back."""

from dataclasses import dataclass, field

import pytest
import torch

from evolora.adapters import ModuleSpec
from evolora.errors import ConfigError, RunError
from evolora.guard import Guard, Watch, finite, own_tensors
from evolora.problems import Rewards
from evolora.search import Eggroll
from evolora.search.state import State


@dataclass
class Scripted:
    """A problem whose validation rewards are written down: one list of rewards a look."""

    script: list
    seen: list = field(default_factory=list)

    def split(self, name):
        assert name == "validation"
        return ("a", "b", "c", "d")

    def judge(self, members, examples, *, seed=0):
        self.seen.append(tuple(examples))
        return Rewards(torch.tensor([self.script.pop(0)], dtype=torch.float32))


def state(step, value=1.0):
    return State(
        {"m": ModuleSpec(2, 2)}, 0, step, 0.1 * step, {"m": torch.full((2, 2), value)}, {"walk": 2.0}
    )


def watched(script, **options):
    return Guard(Scripted(script), Watch(**{"every": 1} | options))


def test_the_best_look_is_kept():
    guard = watched([[0, 0, 0, 1], [1, 1, 0, 1], [1, 1, 0, 0]])
    findings = [guard.look(state(i), None) for i in range(3)]
    assert findings == ["better", "better", "no better"]
    assert guard.best.step == 1
    assert guard.value == pytest.approx(0.75)
    assert guard.looks == [(0, 0.25), (1, 0.75), (2, 0.5)]


def test_patience_counts_looks_without_a_better_one():
    guard = watched([[0, 0, 0, 1], [0, 0, 0, 1], [0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 0, 1]], patience=2)
    ends = []
    for i in range(5):
        guard.look(state(i), None)
        ends.append(guard.patient_no_more)
    assert ends == [False, False, False, False, True]


def test_without_patience_a_search_never_ends_here():
    guard = watched([[1, 1, 1, 1]] + [[0, 1, 1, 1]] * 9)
    for i in range(10):
        guard.look(state(i), None)
    assert not guard.patient_no_more


def test_a_significant_fall_is_a_divergence_and_one_of_chance_is_not():
    guard = watched([[1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0]])
    assert [guard.look(state(i), None) for i in range(3)] == ["better", "no better", "diverged"]


def test_a_state_that_is_not_finite_is_a_divergence_without_a_look():
    guard = watched([[1, 1, 1, 1]])
    guard.look(state(0), None)
    assert guard.look(state(1, float("nan")), None) == "diverged"
    assert len(guard.problem.seen) == 1
    assert not finite(state(1, float("inf")))


def test_restoring_brings_the_best_values_back_and_goes_on_in_step_and_progress():
    guard = watched([[1, 1, 1, 1]])
    guard.look(state(2, 5.0), None)
    back = guard.restore(state(7, 9.0))
    assert (back.step, back.progress) == (7, pytest.approx(0.7))
    assert bool((back.tensors["m"] == 5).all())
    assert guard.halvings == 1


def test_there_must_be_something_to_go_back_to():
    with pytest.raises(RunError, match="diverged before"):
        watched([]).restore(state(1))


def test_halved_steps_are_half_as_long():
    method = Eggroll(lr=0.8)
    assert method.halved(2).lr == pytest.approx(0.2)
    assert method.halved(2).sigma == method.sigma


def test_what_is_saved_comes_back_exactly():
    guard = watched([[0, 1, 0.5, float("nan")], [0, 0, 0, 1]], patience=3)
    guard.look(state(4, 3.0), None)
    guard.look(state(5, 4.0), None)
    tensors, numbers = guard.save()
    other = watched([], patience=3)
    other.load(state(5), {"m": torch.zeros(2, 2)} | tensors, numbers)
    assert (other.value, other.waited, other.looks) == (guard.value, guard.waited, guard.looks)
    assert (other.best.step, other.best.numbers["walk"]) == (4, 2.0)
    assert torch.equal(other.best.tensors["m"], guard.best.tensors["m"])
    torch.testing.assert_close(
        other.save()[0]["guard/rewards"], tensors["guard/rewards"], rtol=0, atol=0, equal_nan=True
    )
    assert list(own_tensors({"m": torch.zeros(1)} | tensors)) == ["m"]


def test_only_so_many_validation_prompts_are_looked_at():
    guard = watched([[1, 1]], prompts=2)
    guard.look(state(0), None)
    assert guard.problem.seen == [("a", "b")]


@pytest.mark.parametrize("name", ["every", "patience", "prompts"])
def test_a_watch_out_of_range_is_refused(name):
    with pytest.raises(ConfigError, match=name):
        Watch(**{"every": 1} | {name: 0})


NAN = float("nan")


def test_a_look_without_any_value_is_never_what_others_are_compared_with():
    guard = watched([[NAN] * 4, [0, 0, 0, 1], [0, 0, 1, 1]])
    assert [guard.look(state(i), None) for i in range(3)] == ["no better", "better", "better"]
    assert (guard.best.step, guard.value) == (2, 0.5)


def test_values_that_are_lost_are_a_fall_and_a_better_mean_of_fewer_prompts_is_not_better():
    guard = watched([[1, 1, 1, 1], [NAN] * 4])
    assert [guard.look(state(i), None) for i in range(2)] == ["better", "diverged"]
    guard = watched([[1, 0, 1, 1], [5, NAN, NAN, NAN]])
    assert [guard.look(state(i), None) for i in range(2)] == ["better", "diverged"]
    guard = watched([[1, 0, 1, 1], [2, 1, 1, NAN]])
    assert [guard.look(state(i), None) for i in range(2)] == ["better", "no better"]
