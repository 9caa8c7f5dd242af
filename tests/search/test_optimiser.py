import pytest
import torch

from evolora.search.optimiser import descend

OPTIMISERS = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9}),
    ("Adam", {}),
    ("AdamW", {"betas": (0.9, 0.99), "weight_decay": 0.1}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("RMSprop", {}),
    ("Adagrad", {}),
    ("Adamax", {}),
]


@pytest.mark.parametrize(("name", "settings"), OPTIMISERS, ids=[name + str(s) for name, s in OPTIMISERS])
def test_many_pure_steps_are_the_optimisers_own_bit_for_bit(name, settings):
    generator = torch.Generator().manual_seed(0)
    start = {key: torch.randn(3, 4, generator=generator) for key in ("one.weight", "two/weight")}
    gradients = [{key: torch.randn(3, 4, generator=generator) for key in start} for _ in range(6)]
    own = {key: torch.nn.Parameter(value.clone()) for key, value in start.items()}
    optimiser = getattr(torch.optim, name)(own.values(), lr=0.1, foreach=False, **settings)
    parameters, memory = start, {"unrelated": torch.zeros(1)}
    for gradient in gradients:
        for key, value in own.items():
            value.grad = gradient[key]
        optimiser.step()
        parameters, memory = descend(name, parameters, gradient, memory, lr=0.1, **settings)
    for key, value in own.items():
        assert torch.equal(parameters[key], value.detach())


def test_a_step_changes_neither_parameters_nor_memory_that_were_given():
    parameters, gradients = {"x": torch.ones(2)}, {"x": torch.ones(2)}
    _, memory = descend("Adam", parameters, gradients, {}, lr=0.1)
    before = {key: value.clone() for key, value in memory.items()}
    descend("Adam", parameters, gradients, memory, lr=0.1)
    assert parameters["x"].tolist() == [1.0, 1.0]
    assert all(torch.equal(memory[key], value) for key, value in before.items())
