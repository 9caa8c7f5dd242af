"""The analytic counts against torch's own counter, which sees eager attention only."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from evolora.engine import Engine, Ledger
from evolora.search import Decomposed

PROMPTS = ["ab", "a much longer prompt ->", "x: y"]
ANSWERS = [" c", " d e f", " z"]


# products in place are none that torch's counter knows
IN_PLACE = {
    torch.ops.aten.baddbmm_: lambda _out, a, b, *_, **__: 2 * a[0] * a[1] * a[2] * b[2],
    torch.ops.aten.addmm_: lambda _out, a, b, *_, **__: 2 * a[0] * a[1] * b[1],
}


def counted(call):
    with FlopCounterMode(display=False, custom_mapping=IN_PLACE) as counter:
        call()
    return counter.get_total_flops()


def members_of(base, make_adapter, layers=None):
    return [make_adapter(seed, rank=3, layers=layers, base=base) for seed in range(3)]


@pytest.mark.parametrize("layers", [None, "top:1"], ids=["all layers", "reused prefix"])
@pytest.mark.parametrize("targets", ["all-linear", "attention"])
def test_scoring_costs_what_torch_counts(engine, make_adapter, layers, targets):
    members = [make_adapter(seed, rank=3, layers=layers, targets=targets) for seed in range(3)]
    engine.bind(members)  # tries once whether a prefix can be shared, which is not counted
    assert counted(lambda: engine.score(members, PROMPTS, ANSWERS)) == pytest.approx(
        engine.ledger.forward_flops, rel=0.01
    )
    engine.ledger = Ledger()
    assert counted(lambda: engine.score(None, PROMPTS, ANSWERS)) == pytest.approx(
        engine.ledger.forward_flops, rel=0.01
    )
    assert engine.ledger.backward_flops == 0
    assert engine.ledger.evaluations == 3


@pytest.mark.parametrize("layers", [None, "top:1"], ids=["all layers", "reused prefix"])
def test_generation_costs_what_torch_counts(engine, make_adapter, layers):
    members = members_of(engine.base, make_adapter, layers)
    engine.bind(members)
    for new in (1, 12):  # a prefill alone, and decoding
        engine.ledger = Ledger()
        found = counted(lambda new=new: engine.generate(members, PROMPTS, max_new_tokens=new))
        assert found == pytest.approx(engine.ledger.forward_flops, rel=0.01)


@pytest.mark.parametrize("shared", [False, True], ids=["an A for each", "one A for all"])
def test_the_norms_of_dora_are_counted(llama, make_adapter, shared):
    engine = Engine(llama)
    if shared:
        method = Decomposed(population=4, direction_rank=3, sigma=0.1)
        template = llama.modules()
        members = method.ask(method.init(template, 0, norms=llama.weight_norms(template)))
    else:
        members = [make_adapter(seed, rank=3, dora=True, base=llama) for seed in range(3)]
    engine.bind(members)
    found = counted(lambda: engine.score(members, PROMPTS, ANSWERS))
    assert found == pytest.approx(engine.ledger.forward_flops, rel=0.002)


def training(engine, targets, layers):
    template = engine.base.modules(targets, layers)
    generator = torch.Generator().manual_seed(0)
    a = {n: torch.randn(3, s.d_in, generator=generator).requires_grad_() for n, s in template.items()}
    b = {n: torch.randn(s.d_out, 3, generator=generator).requires_grad_() for n, s in template.items()}
    with FlopCounterMode(display=False) as counter:
        loss = engine.training_loss(a, b, 0.1, PROMPTS, ANSWERS)
        forward = counter.get_total_flops()
        loss.backward()
    return forward, counter.get_total_flops() - forward


@pytest.mark.parametrize("layers", [None, "top:1", "0-0"])
@pytest.mark.parametrize("targets", ["all-linear", "attention", "mlp"])
def test_training_costs_what_torch_counts(engine, targets, layers):
    forward, backward = training(engine, targets, layers)
    assert forward == pytest.approx(engine.ledger.forward_flops, rel=0.01)
    assert backward == pytest.approx(engine.ledger.backward_flops, rel=0.01)


def test_a_shared_delta_that_is_a_product_of_its_own_is_counted(tiny_gpt2, char_tokenizer):
    from evolora.engine import Base
    from evolora.search import Eggroll

    engine = Engine(Base(tiny_gpt2, char_tokenizer, "tiny"))
    method = Eggroll(sigma=0.1, rank=2, population=4)
    population = method.ask(method.init(engine.base.modules(), 0))
    found = counted(lambda: engine.score(population, PROMPTS, ANSWERS))
    assert found == pytest.approx(engine.ledger.forward_flops, rel=0.01)


def test_the_experts_that_a_token_goes_through_are_counted(char_tokenizer):
    from transformers import AutoModelForCausalLM, Qwen3MoeConfig

    from evolora.engine import Base

    config = Qwen3MoeConfig(
        vocab_size=97,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        attn_implementation="eager",
        experts_implementation="eager",
    )
    engine = Engine(Base(AutoModelForCausalLM.from_config(config), char_tokenizer, "experts"))
    found = counted(lambda: engine.score(None, PROMPTS, ANSWERS))
    assert found == pytest.approx(engine.ledger.forward_flops, rel=0.01)


def test_ledgers_add_up():
    total = Ledger(forward_flops=1.0, generated_tokens=2)
    total.add(Ledger(forward_flops=3.0, backward_flops=5.0))
    total.add({"evaluations": 4})
    assert total.snapshot() == {
        "forward_flops": 4.0,
        "backward_flops": 5.0,
        "prompt_tokens": 0,
        "generated_tokens": 2,
        "evaluations": 4,
        "seconds": 0.0,
    }
    assert total.total_flops == 9.0
