import copy
from math import hypot, sqrt

import numpy as np
import pytest
import torch
from dense_evaluation import dense_members, distance, matrices, quadratic_rewards, random_target, row_norms
from peft import PeftModel
from torch.utils.flop_counter import FlopCounterMode

from evolora.adapters import Adapter, Factors, ModuleSpec
from evolora.adapters.noise import normal
from evolora.engine import Base, Engine
from evolora.engine.layers import attached
from evolora.errors import AdapterError, ConfigError, ModelError, ProtocolError
from evolora.search import from_checkpoint, make_method, to_checkpoint
from evolora.search.decomposed import Decomposed

TEMPLATE = matrices((12, 20), (16, 9))
WIDE = matrices((150, 200), (120, 80))
PROMPTS, ANSWERS = ["ab ->", "cde ->", "f ->"], [" b", " d", " f"]


def weights_of(template):
    return random_target(template, 20, 0.1, seed=9)


def norms_of(template):
    return {name: row_norms(weight)[:, 0] for name, weight in weights_of(template).items()}


def begin(method, template=TEMPLATE, seed=0, start=None):
    return method.init(template, seed, start, norms_of(template))


def tell(method, state, rewards, progress=0.0):
    method.ask(state)
    return method.tell(state, rewards, progress)


def noise_rewards(method, seed=0):
    return torch.randn(method.population, 4, generator=torch.Generator().manual_seed(1000 + seed))


def search(method, target, steps, template=TEMPLATE):
    state, weights = begin(method, template), weights_of(template)
    for step in range(steps):
        rewards = quadratic_rewards(method.ask(state), target, weights=weights)
        state, _ = method.tell(state, rewards, (step + 1) / steps)
    return state


def changes(state):
    return {name: state.tensor(f"{name}.magnitude_change")[:, 0] for name in state.template}


# ------------------------------------------------------------------------------------------- the algorithm


def numpy_noise(seed, step, pair, tensor, *shape):
    return normal(np.empty(shape, np.float32), seed=seed, step=step, pair=pair, tensor=tensor).astype(float)


def numpy_direction(seed, step, pair, tensor, shape):
    a = numpy_noise(seed, step, pair, f"{tensor}/a", 1, shape[1])
    return numpy_noise(seed, step, pair, f"{tensor}/b", shape[0], 1) @ a


def test_it_agrees_with_a_dense_search_in_numpy():
    method = Decomposed(
        sigma=0.05, sigma_magnitude=0.03, lr=0.3, lr_magnitude=0.2, direction_rank=3, factors="ab",
        population=8, weight_decay=0.1,
    )  # fmt: skip
    target, weights = random_target(TEMPLATE, 2, 0.1), weights_of(TEMPLATE)
    state, steps = begin(method, seed=11), 5
    means = {key: value.numpy().astype(float) for key, value in state.tensors.items()}
    units = {name: 1 / sqrt(spec.d_in) for name, spec in TEMPLATE.items()}
    for step in range(steps):
        noise = {}
        for name in TEMPLATE:
            for key in (f"{name}.lora_A", f"{name}.lora_B"):
                noise[key] = [numpy_direction(11, step, j, key, means[key].shape) for j in range(4)]
            key = f"{name}.magnitude_change"
            noise[key] = [numpy_noise(11, step, j, f"{key}/e", TEMPLATE[name].d_out, 1) for j in range(4)]
        score = []
        for member in range(8):
            sign, j, loss = 1 - 2 * (member % 2), member // 2, 0.0
            for name in TEMPLATE:
                a = means[f"{name}.lora_A"] + sign * 0.05 * units[name] * noise[f"{name}.lora_A"][j]
                b = means[f"{name}.lora_B"] + sign * 0.05 * noise[f"{name}.lora_B"][j]
                key = f"{name}.magnitude_change"
                s = means[key] + sign * 0.03 * noise[key][j]
                weight = weights[name].numpy().astype(float)
                length = np.linalg.norm(weight, axis=1, keepdims=True)
                whole = weight + b @ a
                whole *= length * (1 + s) / np.linalg.norm(whole, axis=1, keepdims=True)
                loss += ((whole - weight - target[name].numpy()) ** 2).sum()
            score.append(-loss)
        pairs = np.array(score[0::2]) - np.array(score[1::2])
        pairs /= np.sqrt(np.mean(pairs**2))
        left = 1 - step / steps
        for key, directions in noise.items():
            name, part = key.rsplit(".", 1)
            estimate = sum(w * e for w, e in zip(pairs, directions, strict=True)) / sqrt(4)
            size, decay = {
                "lora_A": (0.3 * 0.05 * units[name], 0.0),
                "lora_B": (0.3 * 0.05, 0.3 * 0.1),
                "magnitude_change": (0.2 * 0.03, 0.2 * 0.1),
            }[part]
            means[key] = (1 - left * decay) * means[key] + left * size * estimate
        rewards = quadratic_rewards(method.ask(state), target, weights=weights)
        state, _ = method.tell(state, rewards, (step + 1) / steps)
    for key, value in state.tensors.items():
        np.testing.assert_allclose(value.numpy(), means[key], rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("population", [4, 16, 64])
@pytest.mark.parametrize("rank", [1, 4])
def test_under_pure_noise_direction_and_magnitude_step_by_their_own_lr_times_sigma(population, rank):
    method = Decomposed(
        sigma=0.04, lr=0.5, sigma_magnitude=0.03, lr_magnitude=0.2, population=population, rank=rank,
        factors="ab",
    )  # fmt: skip
    squares = {"a": [], "b": [], "magnitude": []}
    for seed in range(8):
        state = begin(method, WIDE, seed)
        after, metrics = tell(method, state, noise_rewards(method, seed))
        for name, spec in WIDE.items():
            step_a, step_b = (after.tensor(key) - state.tensor(key) for key in keys(name))
            squares["a"].append(step_a.square().mean().item() * spec.d_in)
            squares["b"].append(step_b.square().mean().item())
            squares["magnitude"].append(changes(after)[name].square().mean().item())
        assert metrics["lr_magnitude"] == pytest.approx(0.2)
        assert metrics["sigma_magnitude"] == pytest.approx(0.03)
    assert sqrt(np.mean(squares["a"])) == pytest.approx(0.5 * 0.04, rel=0.1)
    assert sqrt(np.mean(squares["b"])) == pytest.approx(0.5 * 0.04, rel=0.1)
    assert sqrt(np.mean(squares["magnitude"])) == pytest.approx(0.2 * 0.03, rel=0.1)


def keys(name):
    return f"{name}.lora_A", f"{name}.lora_B"


def test_without_noise_on_the_magnitude_it_stays():
    method = Decomposed(sigma_magnitude=0.0)
    state = begin(method)
    for stack in method.ask(state).block(range(6)).values():
        assert torch.equal(stack.magnitude, stack.magnitude[:1].expand(6, -1))
    after, metrics = tell(method, state, noise_rewards(method))
    assert metrics["magnitude_norm"] == 0
    assert metrics["update_norm"] > 0
    for name, factors in method.adapter(after).modules.items():
        assert torch.equal(factors.magnitude, norms_of(TEMPLATE)[name])
        assert factors.b.any()


def test_the_members_of_a_pair_are_mirror_images_in_direction_and_magnitude():
    method = Decomposed(population=64, sigma=0.3, sigma_magnitude=0.1, direction_rank=4)
    state = begin(method, WIDE)
    for name, stack in method.ask(state).block(range(64)).items():
        norms = norms_of(WIDE)[name]
        torch.testing.assert_close(stack.magnitude[0::2] + stack.magnitude[1::2], 2 * norms.expand(32, -1))
        torch.testing.assert_close(stack.b[0::2], -stack.b[1::2])
        relative = stack.magnitude / norms - 1
        assert relative.std().item() == pytest.approx(0.1, rel=0.05)
        assert abs(torch.corrcoef(torch.stack([relative[0], stack.b[0, :, 0]]))[0, 1].item()) < 0.3


def test_decay_of_sigma_and_lr_holds_for_both_parts():
    method = Decomposed(decay_sigma=True, sigma=0.04, sigma_magnitude=0.02)
    state, metrics = tell(method, begin(method), noise_rewards(method), 0.75)
    _, metrics = tell(method, state, noise_rewards(method), 1.0)
    found = [metrics[name] for name in ("lr", "sigma", "lr_magnitude", "sigma_magnitude")]
    assert found == pytest.approx([0.25, 0.01, 0.25, 0.005])


def test_the_reported_norms_are_those_of_the_mean():
    method = Decomposed(factors="ab", direction_rank=3)
    state, metrics = tell(method, begin(method), noise_rewards(method))
    modules, norms = method.adapter(state).modules, norms_of(TEMPLATE)
    relative = [(f.magnitude / norms[name] - 1).norm().item() for name, f in modules.items()]
    absolute = [(f.magnitude - norms[name]).norm().item() for name, f in modules.items()]
    assert metrics["magnitude_norm"] == pytest.approx(hypot(*relative), rel=1e-4)
    products = [f.delta().norm().item() for f in modules.values()]
    assert metrics["delta_norm"] == pytest.approx(hypot(*products, *absolute), rel=1e-4)


def test_halved_steps_are_halved_for_both_parts():
    method = Decomposed(lr=0.8, lr_magnitude=0.4).halved(2)
    assert (method.lr, method.lr_magnitude) == (0.2, 0.1)


# ------------------------------------------------------------------------------------------- the ablations


def test_each_ablation_keeps_what_it_says_and_stays_above_its_floor_where_the_whole_does_not():
    """The floors in closed form: rows of the base's norm, and rows along the base's."""
    target, weights = random_target(TEMPLATE, 2, 0.1), weights_of(TEMPLATE)
    goal = {name: weights[name] + delta for name, delta in target.items()}
    along = {name: weights[name] / row_norms(weights[name]) for name in goal}
    floors = {
        "direction_only": sum((row_norms(goal[n]) - row_norms(weights[n])).square().sum() for n in goal),
        "magnitude_only": sum(
            (goal[n] - (goal[n] * along[n]).sum(1, keepdim=True) * along[n]).square().sum() for n in goal
        ),
    }
    reached = {}
    for ablation in ("none", "direction_only", "magnitude_only"):
        method = Decomposed(direction_rank=4, factors="ab", ablation=ablation)
        state = search(method, target, 120)
        mean = dense_members(method.mean(state), weights=weights)
        reached[ablation] = distance(method.mean(state), target, weights)
        for name, delta in mean.items():
            whole = weights[name] + delta[0]
            if ablation == "direction_only":
                torch.testing.assert_close(row_norms(whole), row_norms(weights[name]))
            if ablation == "magnitude_only":
                torch.testing.assert_close((whole * along[name]).sum(1, keepdim=True), row_norms(whole))
                assert not state.tensor(f"{name}.lora_B").any()
    for ablation, floor in floors.items():
        assert 0.999 * floor < reached[ablation] < 1.5 * floor
        assert reached["none"] < 0.5 * floor


# --------------------------------------------------------------------------------------------- the start


def dora_start(rank=2, **changed):
    generator = torch.Generator().manual_seed(3)
    fields = {
        "a": torch.randn(rank, 20, generator=generator),
        "b": torch.randn(12, rank, generator=generator),
        "scale": 0.5,
        "magnitude": torch.randn(12, generator=generator),  # of either sign, as a gradient may leave it
    }
    return Adapter({"layer.0.proj": Factors(**fields | changed)})


def test_a_dora_adapter_of_any_magnitude_is_a_start():
    start, method = dora_start(), Decomposed(direction_rank=4)
    (module,) = start.modules.values()
    exported = method.adapter(begin(method, start=start)).modules
    torch.testing.assert_close(exported["layer.0.proj"].magnitude, module.magnitude)
    torch.testing.assert_close(exported["layer.0.proj"].delta(), module.delta())
    assert torch.equal(exported["layer.1.proj"].magnitude, norms_of(TEMPLATE)["layer.1.proj"])


def test_starts_and_bases_that_dora_cannot_stand_on_are_refused_by_name():
    method = Decomposed(direction_rank=2)
    with pytest.raises(AdapterError, match="a LoRA cannot be the start of this method; give a DoRA adapter"):
        begin(method, start=dora_start(magnitude=None))
    with pytest.raises(AdapterError, match="rank 3, above 2"):
        begin(method, start=dora_start(rank=3))
    embedding = {"embed": ModuleSpec(8, 40, "embedding")}
    with pytest.raises(ModelError, match=r"embed: DoRA on an embedding.*leave embeddings out"):
        method.init(embedding, 0, norms={"embed": torch.ones(8)})
    for norms in (None, {}, {"layer.0.proj": torch.ones(3)}):
        with pytest.raises(ProtocolError, match=r"layer.0.proj: the norms .* are missing; .*weight_norms"):
            method.init(TEMPLATE, 0, norms=norms)
    for bad in (0.0, float("inf"), float("nan")):
        norms = norms_of(TEMPLATE)
        norms["layer.1.proj"][3] = bad
        with pytest.raises(ModelError, match=r"layer.1.proj: an output channel of zero or infinite"):
            method.init(TEMPLATE, 0, norms=norms)
    with pytest.raises(ConfigError, match="lr_magnitude"):
        Decomposed(lr_magnitude=2.0, weight_decay=0.5)


def test_the_registry_makes_it():
    assert make_method("decomposed", ablation="direction_only") == Decomposed(ablation="direction_only")


# --------------------------------------------------------------------------------------------- the engine


@pytest.fixture
def make_engine(make_tiny, char_tokenizer):
    return lambda name: Engine(Base(make_tiny(name), char_tokenizer, "tiny"))


def start_on(engine, method, seed=0):
    template = engine.base.modules("all-linear")
    return method.init(template, seed, norms=engine.base.weight_norms(template))


def likelihood(engine, members):
    return engine.log_likelihood(members, PROMPTS, ANSWERS)


def learn(engine, method, state, steps, total):
    for step in range(state.step, steps):
        rewards = likelihood(engine, method.ask(state))
        state, _ = method.tell(state, rewards, (step + 1) / total)
    return state


@pytest.mark.parametrize("ablation", ["none", "direction_only", "magnitude_only"])
def test_a_likelihood_reward_teaches_a_language_model(make_engine, ablation):
    engine = make_engine("llama")
    method = Decomposed(lr=0.5, direction_rank=4, ablation=ablation)
    state = learn(engine, method, start_on(engine, method), 15, 15)
    assert likelihood(engine, method.mean(state)).mean() > likelihood(engine, None).mean() + 1


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen3"])
@pytest.mark.parametrize("factors", ["b", "ab"])
def test_the_exported_folder_gives_peft_the_logits_of_the_engine(
    make_engine, architecture, factors, tmp_path
):
    engine = make_engine(architecture)
    method = Decomposed(sigma=0.2, sigma_magnitude=0.1, factors=factors, direction_rank=3)
    state = learn(engine, method, start_on(engine, method), 4, 8)
    adapter = method.adapter(state)
    assert all((f.magnitude > 0).all() and f.b.any() for f in adapter.modules.values())
    model = PeftModel.from_pretrained(
        copy.deepcopy(engine.base.model), adapter.save(tmp_path / "dora")
    ).eval()
    ids, bound = (
        torch.tensor([engine.base.encode("abc ->"), engine.base.encode("d ->ef")]),
        engine.bind(adapter),
    )
    with torch.no_grad():
        plain = engine.base.model(input_ids=ids).logits.flatten(0, 1)
        theirs = model(input_ids=ids).logits.flatten(0, 1)
        with attached(engine.base, engine.terms(bound, [0]), bound.shared):
            ours = engine.forward(bound, ids, 1, positions=torch.arange(ids.numel()))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert (ours - plain).abs().max() > 0.1


@pytest.mark.parametrize("factors", ["b", "ab"])
@pytest.mark.parametrize("ablation", ["none", "direction_only", "magnitude_only"])
def test_one_member_at_a_time_is_rewarded_as_in_the_population(make_engine, factors, ablation):
    engine = make_engine("gpt2")
    method = Decomposed(
        sigma=0.2, sigma_magnitude=0.1, population=6, factors=factors, ablation=ablation, direction_rank=3
    )
    population = method.ask(learn(engine, method, start_on(engine, method), 2, 4))
    whole = likelihood(engine, population)
    alone = torch.cat([likelihood(engine, population.select([member])) for member in range(6)])
    torch.testing.assert_close(whole, alone, rtol=1e-4, atol=1e-4)
    assert len(whole.unique(dim=0)) == 6


def test_without_noise_every_member_is_the_base_bit_for_bit(make_engine):
    """Where a linear module has no bias: with one, (y - bias) + bias may round."""
    engine, method = make_engine("llama"), Decomposed(sigma=0.0, sigma_magnitude=0.0, population=4)
    rewards = likelihood(engine, method.ask(start_on(engine, method)))
    assert torch.equal(rewards, likelihood(engine, None).expand(4, -1))


def test_a_search_on_a_language_model_resumes_bit_for_bit(make_engine):
    engine, method = make_engine("llama"), Decomposed(population=4, factors="ab", optimiser="adam")
    start = start_on(engine, method)
    whole = learn(engine, method, start, 4, 4)
    half = learn(engine, method, start_on(engine, method), 2, 4)
    resumed = from_checkpoint(start.template, *to_checkpoint(half))
    after = learn(engine, method, resumed, 4, 4)
    assert whole.tensors.keys() == after.tensors.keys()
    assert all(torch.equal(value, after.tensors[key]) for key, value in whole.tensors.items())


def test_a_quantised_base_is_refused_with_what_to_do(make_engine):
    engine, method = make_engine("llama"), Decomposed()
    module = engine.base.model.model.layers[1].mlp.up_proj
    module.weight = torch.nn.Parameter((module.weight * 50).to(torch.int8), requires_grad=False)
    with pytest.raises(ModelError, match=r"layers.1.mlp.up_proj: .*quantised.*load the base unquantised"):
        start_on(engine, method)


def products(engine, method, members):
    """FLOPs of what the engine prepares for the first members of a population, by torch's own counter."""
    population = method.ask(start_on(engine, method))
    bound = engine.bind(population)
    with FlopCounterMode(display=False) as counter:
        engine.terms(bound, list(range(members)))
    return counter.get_total_flops()


def test_a_shared_a_meets_the_weights_once_for_all_members(make_engine):
    engine, rank = make_engine("llama"), 3
    shapes = engine.base.modules("all-linear").values()
    with_weight = sum(2 * spec.d_out * spec.d_in * rank for spec in shapes)
    gram = sum(2 * spec.d_in * rank * rank for spec in shapes)
    in_rank = sum(2 * spec.d_out * rank * rank for spec in shapes)
    for members in (1, 2, 8):
        shared = products(engine, Decomposed(direction_rank=rank), members)
        own = products(engine, Decomposed(direction_rank=rank, factors="ab"), members)
        assert shared == with_weight + gram + members * in_rank
        assert own == members * (with_weight + gram + in_rank)
