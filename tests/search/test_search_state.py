import json

import pytest
import torch
from dense_evaluation import matrices

from evolora.adapters import ModuleSpec
from evolora.errors import ProtocolError, RunError
from evolora.search import Eggroll, State, from_checkpoint, to_checkpoint

TEMPLATE = matrices((3, 4))


def example():
    tensors = {"x": torch.randn(3, 4).T, "n": torch.tensor(3)}
    return State(
        TEMPLATE, 2**62 + 1, step=7, progress=1 / 3, tensors=tensors, numbers={"walk": 0.1, "count": 5}
    )


def test_a_checkpoint_survives_json_and_gives_the_same_bits():
    state = example()
    state.turn.asked = True
    tensors, numbers = to_checkpoint(state)
    assert all(value.is_contiguous() for value in tensors.values())
    back = from_checkpoint(TEMPLATE, tensors, json.loads(json.dumps(numbers)))
    assert (back.seed, back.step, back.progress, back.asked) == (state.seed, 7, 1 / 3, True)
    assert dict(back.numbers) == dict(state.numbers)
    assert dict(back.template) == TEMPLATE
    assert all(torch.equal(back.tensors[key], value) for key, value in state.tensors.items())


def test_a_checkpoint_for_other_modules_is_refused():
    for other in (
        matrices((4, 3)),
        matrices((3, 4), (3, 4)),
        {"layer.0.proj": ModuleSpec(3, 4, "embedding")},
    ):
        with pytest.raises(RunError, match="other modules"):
            from_checkpoint(other, *to_checkpoint(example()))


def test_a_checkpoint_that_lacks_a_number_is_refused_by_name():
    tensors, numbers = to_checkpoint(example())
    del numbers["progress"]
    with pytest.raises(RunError, match="holds no progress"):
        from_checkpoint(TEMPLATE, tensors, numbers)


def test_a_state_cannot_be_edited():
    state = example()
    with pytest.raises(AttributeError):
        state.step = 3
    with pytest.raises(TypeError):
        state.tensors["x"] = torch.zeros(1)


def test_the_optimisers_memory_is_part_of_the_state():
    method = Eggroll(optimiser="adam", population=4)
    state = method.init(TEMPLATE, 0)
    method.ask(state)
    state, _ = method.tell(state, torch.tensor([[1.0], [0.0], [2.0], [0.0]]))
    memory = {key for key in to_checkpoint(state)[0] if key.startswith("optimiser/")}
    assert memory == {f"optimiser/layer.0.proj/{slot}" for slot in ("step", "exp_avg", "exp_avg_sq")}


def test_a_missing_tensor_is_named():
    with pytest.raises(ProtocolError, match="no tensor 'y'"):
        example().tensor("y")
