import pytest
import torch

from evolora.adapters import ModuleSpec
from evolora.adapters.geometry import cosine
from evolora.diagnostics.deltas import deltas_of, dense
from evolora.diagnostics.path import Line, straight_path
from evolora.errors import AdapterError, ProtocolError
from evolora.problems import Problem, load_reward
from evolora.tasks import Example, Task

EXAMPLES = tuple(Example(f"{letter}:", " e") for letter in "abcdefgh")


@pytest.fixture
def problem(engine):
    task = Task("toy", EXAMPLES[:4], EXAMPLES[4:6], EXAMPLES[6:], 3)
    return Problem(engine, task, load_reward("logprob"))


@pytest.fixture
def ends(make_adapter, engine):
    modules = engine.base.modules("all-linear")
    some = dict(list(modules.items())[3:])
    return make_adapter(modules, name="a"), make_adapter(some, name="b", rank=3)


def test_points_of_the_line_are_the_interpolated_dense_deltas(make_adapter, shapes):
    first = make_adapter(shapes, rank=3)
    second = make_adapter({"two": shapes["two"], "new": ModuleSpec(4, 4)}, name="other")
    one, other = dense(first.modules), dense(second.modules)
    line = Line(first, second, (0.0, 0.3, 1.0, 1.5))
    for i, t in enumerate(line.positions):
        found = dense(deltas_of(line, i))
        assert found.keys() == {*shapes, "new"}
        for name, delta in found.items():
            zero = torch.zeros_like(delta)
            wanted = (1 - t) * one.get(name, zero) + t * other.get(name, zero)
            torch.testing.assert_close(delta, wanted, atol=1e-6, rtol=1e-5)


def test_the_ends_are_the_adapters_and_all_points_agree_with_one_at_a_time(problem, ends):
    first, second = ends
    found = straight_path(problem, first, second, EXAMPLES, (0, 0.5, 1))
    alone = [problem.judge(members, EXAMPLES).values.mean().item() for members in (first, second)]
    assert (found.rewards[0], found.rewards[2]) == pytest.approx(tuple(alone), rel=1e-4)
    middle = problem.judge(Line(first, second, (0.5,)), EXAMPLES).values.mean().item()
    assert found.rewards[1] == pytest.approx(middle, rel=1e-4)
    assert found.barrier == pytest.approx(max(0, sum(alone) / 2 - middle), abs=1e-4)
    assert found.cosine == pytest.approx(cosine(first, second))


def test_an_adapter_and_itself_have_a_flat_line(problem, ends):
    found = straight_path(problem, ends[0], ends[0], EXAMPLES)
    assert found.cosine == pytest.approx(1)
    assert found.distance == pytest.approx(0, abs=1e-6)
    assert max(found.rewards) == pytest.approx(min(found.rewards), rel=1e-4)
    assert found.barrier == pytest.approx(0, abs=1e-4)


def test_a_valley_between_two_ends_is_a_barrier(problem, ends, monkeypatch):
    heights = torch.tensor([[1.0], [0.2], [0.9], [3.0]])

    class Judged:
        values = heights.expand(4, 2)

    monkeypatch.setattr(problem, "judge", lambda *_: Judged)
    found = straight_path(problem, *ends, EXAMPLES, (0, 0.5, 0.75, 1))
    assert found.barrier == pytest.approx(1.8)
    heights[1:3] = torch.tensor([[2.0], [2.5]])
    assert straight_path(problem, *ends, EXAMPLES, (0, 0.5, 0.75, 1)).barrier == pytest.approx(0)


def test_the_base_can_be_an_end(problem, ends):
    found = straight_path(problem, None, ends[1], EXAMPLES, (0, 1))
    assert found.rewards[0] == pytest.approx(problem.judge(None, EXAMPLES).values.mean().item(), rel=1e-4)
    assert found.cosine != found.cosine  # a zero delta has no direction
    assert found.barrier == 0


def test_what_has_no_line_is_refused(problem, ends, make_adapter, shapes):
    ones = {name: torch.ones(spec.d_out) for name, spec in shapes.items()}
    with pytest.raises(AdapterError, match="DoRA"):
        Line(make_adapter(shapes), make_adapter(shapes, dora=ones), (0, 1))
    other = {"one": ModuleSpec(6, 11)}
    with pytest.raises(AdapterError, match="one"):
        Line(make_adapter(shapes), make_adapter(other), (0, 1))
    with pytest.raises(ProtocolError, match="ends"):
        straight_path(problem, *ends, EXAMPLES, (0.0, 0.5))
