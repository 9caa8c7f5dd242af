import pytest
import torch

from evolora.engine import Base, Engine
from evolora.search import AdamW, Eggroll

PROMPTS, ANSWERS = ["ab ->", "cde ->", "f ->"], [" b", " d", " f"]


@pytest.fixture
def engine(tiny_llama, char_tokenizer):
    return Engine(Base(tiny_llama, char_tokenizer, "tiny"))


def likelihood(engine, members):
    return engine.log_likelihood(members, PROMPTS, ANSWERS)


@pytest.mark.parametrize(
    "method",
    [
        Eggroll(sigma=0.02, lr=0.3, rank=2),
        Eggroll(sigma=0.05, lr=0.5, space="factors", export_rank=4),
        Eggroll(sigma=0.05, lr=0.5, space="factors", factors="ab", export_rank=4),
    ],
    ids=["weights", "factors b", "factors ab"],
)
def test_a_likelihood_reward_teaches_a_language_model(engine, method):
    state = method.init(engine.base.modules("all-linear"), 0)
    before = likelihood(engine, None).mean()
    for step in range(15):
        rewards = likelihood(engine, method.ask(state))
        state, _ = method.tell(state, rewards, (step + 1) / 15)
    assert likelihood(engine, method.mean(state)).mean() > before + 1
    torch.testing.assert_close(
        likelihood(engine, method.adapter(state, rank=100)),
        likelihood(engine, method.mean(state)),
        rtol=1e-3,
        atol=1e-3,
    )


def test_one_member_at_a_time_is_rewarded_as_in_the_population(engine):
    method = Eggroll(sigma=0.1, rank=2, population=6)
    population = method.ask(method.init(engine.base.modules("attention"), 0))
    whole = likelihood(engine, population)
    alone = torch.cat([likelihood(engine, population.select([member])) for member in range(6)])
    torch.testing.assert_close(whole, alone, rtol=1e-4, atol=1e-4)
    assert len(whole.unique(dim=0)) == 6


def test_sigma_zero_rewards_every_member_as_the_base(engine):
    method = Eggroll(sigma=0.0, population=4)
    rewards = likelihood(engine, method.ask(method.init(engine.base.modules("all-linear"), 0)))
    assert torch.equal(rewards, likelihood(engine, None).expand(4, -1))


def test_gradients_teach_it_faster(engine):
    method = AdamW(rank=4, lr=0.02)
    state = method.init(engine.base.modules("all-linear"), 0)
    before = likelihood(engine, None).mean()
    for step in range(15):
        state, metrics = method.step(state, engine, list(zip(PROMPTS, ANSWERS, strict=True)), (step + 1) / 15)
    assert metrics["failed"] == 0
    assert likelihood(engine, method.adapter(state)).mean() > before + 3
