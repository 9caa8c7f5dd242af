import copy
from math import sqrt

import numpy as np
import pytest
import torch
from dense_evaluation import dense_members, matrices
from peft import PeftModel

from evolora.adapters import Adapter, Factors, as_population
from evolora.adapters.geometry import norm, spectrum
from evolora.engine import Base, Engine
from evolora.engine.layers import attached
from evolora.errors import AdapterError, ProtocolError
from evolora.search.coordinates import (
    AtPoints,
    Coordinates,
    merge_weights,
    random_directions,
    singular_values,
)
from evolora.search.state import State

TEMPLATE = matrices((6, 10), (8, 5), (7, 7))
NAMES = list(TEMPLATE)


def lora(seed, rank=3, names=NAMES, template=TEMPLATE, scale=0.5):
    generator = torch.Generator().manual_seed(seed)
    modules = {}
    for name in names:
        spec = template[name]
        a = torch.randn(rank, spec.d_in, generator=generator)
        modules[name] = Factors(a, torch.randn(spec.d_out, rank, generator=generator), scale, kind=spec.kind)
    return Adapter(modules, name=f"lora-{seed}")


def points(count, dimension, seed=0):
    drawn = torch.randn(count, dimension, generator=torch.Generator().manual_seed(seed))
    return drawn.double()


def members(coordinates, some):
    return AtPoints(coordinates, some, [str(i) for i in range(len(some))])


MAPS = {
    "random directions": lambda: random_directions(TEMPLATE, 3, seed=1),
    "singular values": lambda: singular_values(TEMPLATE, lora(1), 3),
    "some singular values": lambda: singular_values(TEMPLATE, lora(1, names=NAMES[:2]), 2),
    "merge weights": lambda: merge_weights([lora(1, 2), lora(2, 3, NAMES[1:]), lora(3, 1)]),
}
every_map = pytest.mark.parametrize("make", MAPS.values(), ids=MAPS)


# ------------------------------------------------------------------------------------------------ every map


@every_map
def test_the_delta_is_affine_in_the_coordinates(make):
    coordinates = make()
    x, y = points(2, coordinates.dimension)
    whole = dense_members(members(coordinates, torch.stack([x, y, 0.3 * x + 0.7 * y])))
    for delta in whole.values():
        torch.testing.assert_close(delta[2], 0.3 * delta[0] + 0.7 * delta[1], rtol=1e-4, atol=1e-5)


@every_map
def test_the_adapter_at_a_point_is_the_member_there(make):
    coordinates = make()
    some = points(3, coordinates.dimension)
    whole = dense_members(members(coordinates, some))
    for i, point in enumerate(some):
        alone = dense_members(as_population(Adapter(coordinates.modules(point))))
        assert alone.keys() == whole.keys()
        assert all(torch.equal(alone[name][0], whole[name][i]) for name in whole)


@every_map
def test_the_distance_of_two_points_is_that_of_their_dense_deltas(make):
    coordinates = make()
    x, y = points(2, coordinates.dimension)
    whole = dense_members(members(coordinates, torch.stack([x, y])))
    between = sqrt(sum((d[0] - d[1]).double().square().sum().item() for d in whole.values()))
    alone = sqrt(sum(d[0].double().square().sum().item() for d in whole.values()))
    assert coordinates.distance(x, y) == pytest.approx(between, rel=1e-5)
    assert coordinates.distance(x) == pytest.approx(alone, rel=1e-5)
    assert coordinates.distance(x, x) == 0


@every_map
def test_every_coordinate_moves_something_and_what_it_moves_is_its_own(make):
    coordinates = make()
    start, dimension = coordinates.start, coordinates.dimension
    steps = start + torch.eye(dimension, dtype=torch.float64)
    whole = dense_members(members(coordinates, torch.cat([start[None], steps])))
    moves = torch.cat([(d[1:] - d[0]).flatten(1) for d in whole.values()], 1)
    assert torch.linalg.matrix_rank(moves, rtol=1e-4) == dimension


@every_map
def test_a_state_gives_the_map_back_bit_for_bit(make):
    coordinates = make()
    template = dict(coordinates.specs)
    again = Coordinates.of_state(State(template, 0, tensors=coordinates.tensors()), coordinates.start)
    some = points(2, coordinates.dimension)
    one, two = dense_members(members(coordinates, some)), dense_members(members(again, some))
    assert all(torch.equal(one[name], two[name]) for name in one)
    partial = {key: value for key, value in coordinates.tensors().items() if "lora_B" not in key}
    with pytest.raises(ProtocolError, match="holds no tensor"):
        Coordinates.of_state(State(template, 0, tensors=partial), coordinates.start)


# ---------------------------------------------------------------------------------------- random directions


def test_random_directions_start_at_the_base_and_are_orthogonal_with_the_stated_unit():
    coordinates = random_directions(TEMPLATE, 3, seed=0)
    assert coordinates.dimension == 9
    assert not any(delta.any() for delta in dense_members(members(coordinates, torch.zeros(1, 9))).values())
    for name, spec in TEMPLATE.items():
        unit = sqrt(spec.d_out * spec.d_in / 3)
        eye = torch.eye(3)
        torch.testing.assert_close(coordinates.a[name] @ coordinates.a[name].T, eye, rtol=0, atol=1e-6)
        u = coordinates.b[name] / unit
        torch.testing.assert_close(u.T @ u, eye, rtol=0, atol=1e-6)


@pytest.mark.parametrize("directions", [1, 4, 99])
def test_coordinates_of_deviation_sigma_move_each_weight_by_sigma_rms(directions):
    template = matrices((30, 20), (12, 40))
    coordinates = random_directions(template, directions, seed=2)
    assert coordinates.dimension == sum(min(directions, spec.d_out, spec.d_in) for spec in template.values())
    whole = dense_members(members(coordinates, 0.1 * points(4000, coordinates.dimension)))
    for delta in whole.values():
        assert delta.square().mean().sqrt().item() == pytest.approx(0.1, rel=0.03)


def test_random_directions_follow_from_the_seed_and_differ_between_modules():
    template = matrices((9, 9), (9, 9))
    one, two, other = (random_directions(template, 2, seed) for seed in (3, 3, 4))
    first, second = template
    assert torch.equal(one.b[first], two.b[first])
    assert not torch.allclose(one.b[first], other.b[first])
    assert not torch.allclose(one.b[first], one.b[second])
    assert not torch.allclose(one.a[first], one.b[first].T / one.b[first].norm(dim=0)[:, None])


# ------------------------------------------------------------------------------------------ singular values


def test_the_start_is_the_adapter_and_coordinates_are_its_singular_values_over_the_largest():
    start = lora(1, rank=3)
    coordinates = singular_values(TEMPLATE, start, 3)
    whole = dense_members(members(coordinates, coordinates.start[None]))
    for i, (name, factors) in enumerate(start.modules.items()):
        torch.testing.assert_close(whole[name][0], factors.delta(), rtol=1e-5, atol=1e-6)
        expected = np.linalg.svd(factors.delta().double().numpy(), compute_uv=False)[:3]
        ours = coordinates.start[3 * i : 3 * i + 3].numpy()
        np.testing.assert_allclose(ours, expected / expected[0], rtol=1e-5)
        unit = coordinates.b[name].norm(dim=0)
        torch.testing.assert_close(unit, torch.full((3,), float(expected[0])), rtol=1e-5, atol=0)


def test_moving_a_coordinate_moves_that_singular_value_and_no_other():
    start = lora(1, rank=3)
    coordinates = singular_values(TEMPLATE, start, 3)
    moved = coordinates.start.clone()
    moved[1] += 0.05  # the second value of the first module
    before = {name: spectrum(factors) for name, factors in coordinates.modules(coordinates.start).items()}
    after = {name: spectrum(factors) for name, factors in coordinates.modules(moved).items()}
    expected = before[NAMES[0]].clone()
    expected[1] += 0.05 * expected[0]
    torch.testing.assert_close(after[NAMES[0]], expected.sort(descending=True).values, rtol=1e-5, atol=1e-6)
    assert torch.equal(after[NAMES[1]], before[NAMES[1]])


def test_the_same_delta_in_other_factors_has_the_same_coordinates():
    start = lora(1, rank=2)
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    other = Adapter(
        {
            name: Factors(
                torch.cat([turn @ f.a, torch.ones(1, f.a.shape[1])]),
                torch.cat([f.b @ turn.T * f.scale, torch.zeros(len(f.b), 1)], 1),
            )
            for name, f in start.modules.items()
        }
    )
    one, two = singular_values(TEMPLATE, start, 4), singular_values(TEMPLATE, other, 4)
    torch.testing.assert_close(one.start, two.start, rtol=1e-5, atol=1e-6)
    some = points(2, one.dimension)
    first, second = dense_members(members(one, some)), dense_members(members(two, some))
    for name in TEMPLATE:
        torch.testing.assert_close(first[name], second[name], rtol=1e-4, atol=1e-4)


def test_smaller_singular_values_than_the_searched_stay_as_they_are():
    start = lora(1, rank=3)
    coordinates = singular_values(TEMPLATE, start, 1)
    assert coordinates.dimension == 3
    whole = dense_members(members(coordinates, torch.zeros(1, 3)))
    for name, factors in start.modules.items():
        u, s, v = torch.linalg.svd(factors.delta())
        rest = u[:, 1:3] * s[1:3] @ v[1:3]
        torch.testing.assert_close(whole[name][0], rest, rtol=1e-4, atol=1e-5)


def test_modules_that_the_start_lacks_stay_as_in_the_base():
    coordinates = singular_values(TEMPLATE, lora(1, names=NAMES[:1]), 3)
    population = members(coordinates, points(2, 3))
    assert list(population.specs) == list(population.ranks) == list(population.block([0])) == NAMES[:1]
    assert list(coordinates.modules(coordinates.start)) == NAMES[:1]


def test_a_start_without_any_delta_is_refused():
    fresh = Adapter({NAMES[0]: Factors(torch.ones(2, 10), torch.zeros(6, 2))})
    with pytest.raises(AdapterError, match=r"delta is zero.*leave the start out"):
        singular_values(TEMPLATE, fresh, 1)


# -------------------------------------------------------------------------------------------- merge weights


def test_a_merge_is_the_weighted_sum_of_the_deltas():
    adapters = [lora(1, 2), lora(2, 3, NAMES[1:], scale=2.0), lora(3, 1)]
    coordinates = merge_weights(adapters)
    some = points(4, 3)
    whole = dense_members(members(coordinates, some))
    for name, spec in TEMPLATE.items():
        deltas = [
            adapter.modules[name].delta() if name in adapter.modules else torch.zeros(spec.d_out, spec.d_in)
            for adapter in adapters
        ]
        expected = torch.einsum("nk,koi->noi", some.float(), torch.stack(deltas))
        torch.testing.assert_close(whole[name], expected, rtol=1e-4, atol=1e-5)


def test_a_merge_starts_at_the_mean_and_a_unit_vector_is_the_parent():
    adapters = [lora(1), lora(2)]
    coordinates = merge_weights(adapters)
    assert coordinates.start.tolist() == [0.5, 0.5]
    parent = Adapter(coordinates.modules(torch.tensor([0.0, 1.0], dtype=torch.float64)))
    for name in TEMPLATE:
        torch.testing.assert_close(parent.modules[name].delta(), adapters[1].modules[name].delta())


def test_twins_merge_to_the_parent_and_cancel_with_opposite_weights():
    twin = lora(1)
    coordinates = merge_weights([twin, lora(1)])
    assert coordinates.distance(coordinates.start) == pytest.approx(norm(twin), rel=1e-6)
    opposite = torch.tensor([0.8, -0.8], dtype=torch.float64)
    assert coordinates.distance(opposite) == pytest.approx(0, abs=1e-5 * norm(twin))


def test_a_merge_of_what_does_not_add_up_is_refused():
    with pytest.raises(AdapterError, match="at least one"):
        merge_weights([])
    other = Adapter({NAMES[0]: Factors(torch.zeros(1, 4), torch.zeros(6, 1))})
    with pytest.raises(AdapterError, match=f"{NAMES[0]}.*another adapter has"):
        merge_weights([lora(1), other])
    dora = Adapter({NAMES[0]: Factors(torch.zeros(1, 10), torch.zeros(6, 1), 1.0, torch.ones(6))})
    with pytest.raises(AdapterError, match="DoRA"):
        merge_weights([lora(1), dora])


# ----------------------------------------------------------------------------------------------- on a model

PROMPTS, ANSWERS = ["ab ->", "cde ->", "f ->"], [" b", " d", " f"]


def on_model(kind, base):
    template = base.modules("all-linear") | base.modules(["model.embed_tokens"])
    some = list(template)
    if kind == "random directions":
        return random_directions(template, 2, seed=0)
    if kind == "singular values":
        return singular_values(template, lora(1, 2, some, template, 0.1), 1)
    return merge_weights([lora(1, 2, some, template, 0.1), lora(2, 1, some[3:], template, 0.1)])


@pytest.mark.parametrize("kind", ["random directions", "singular values", "merge weights"])
def test_members_in_a_batch_equal_members_one_by_one_and_the_adapter_in_peft(
    tiny_llama, char_tokenizer, tmp_path, kind
):
    engine = Engine(Base(tiny_llama, char_tokenizer, "tiny"))
    coordinates = on_model(kind, engine.base)
    some = coordinates.start + 0.2 * points(4, coordinates.dimension)
    population = members(coordinates, some)
    whole = engine.log_likelihood(population, PROMPTS, ANSWERS)
    alone = [engine.log_likelihood(population.select([i]), PROMPTS, ANSWERS) for i in range(4)]
    torch.testing.assert_close(whole, torch.cat(alone), rtol=1e-4, atol=1e-4)
    assert len(whole.unique(dim=0)) == 4

    ids, bound = torch.tensor([engine.base.encode("abc ->")]), engine.bind(population)
    with torch.no_grad(), attached(engine.base, engine.terms(bound, [2]), bound.shared):
        ours = engine.forward(bound, ids, 1, positions=torch.arange(ids.numel()))
    folder = Adapter(coordinates.modules(some[2])).save(tmp_path / "adapter")
    peft = PeftModel.from_pretrained(copy.deepcopy(engine.base.model), folder).eval()
    with torch.no_grad():
        theirs = peft(input_ids=ids).logits.flatten(0, 1)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
