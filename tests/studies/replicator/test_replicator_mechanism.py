import pytest
import torch

from evolora.studies.replicator import checks, proxy
from evolora.studies.replicator.mechanism import ReplicatorMechanism
from evolora.studies.study import Cells


@pytest.fixture
def cell():
    return ReplicatorMechanism().cell({"arm": "checks"}, 3, {})


def test_every_check_holds_at_its_tolerance_and_fails_beyond_it(cell):
    def holds(cell):
        found = Cells((3,), {"checks": {3: cell}}, {})
        study = ReplicatorMechanism()
        arms = {arm: {3: {"loss": 1.0}} for arm in study.arms({}) if arm != "checks"}
        findings = study.judge(Cells((3,), {**found.results, **arms}, {}))
        return {finding.claim: finding.holds for finding in findings[:5]}

    assert all(holds(cell).values())
    counts = [sum(cell["resampling"]["offspring"]) // 16] * 16
    for name, broken in (
        ("mass", 1e-11),
        ("selection", 1e-5),
        ("memory", 1e-5),
        ("diffusion", [0.0, 0.02, 0.0]),
        ("resampling", cell["resampling"] | {"wrong": 1}),
        ("resampling", cell["resampling"] | {"offspring": counts}),
        ("resampling", cell["resampling"] | {"fired": 0}),
    ):
        assert [claim for claim, held in holds(cell | {name: broken}).items() if not held] == [name]


def test_a_wrong_rule_is_noticed(monkeypatch):
    from evolora.search import replicator, replicator_dynamics

    select, remember = replicator_dynamics.select, replicator_dynamics.remember
    monkeypatch.setattr(replicator, "select", lambda w, m, s, part: select(w, m, s * (1 + 1e-5), part))
    assert checks.selection(0) > 1e-6
    monkeypatch.setattr(replicator, "remember", lambda m, g, w, f: remember(m, g, w, f * (1 + 1e-5)))
    assert checks.memory(0) > 1e-6
    monkeypatch.setattr(replicator, "too_few", lambda weights: 1 / weights.square().sum() < len(weights) / 2)
    assert checks.resampling(0)["wrong"] > 0


def test_a_gradient_is_that_of_the_shared_rewards():
    one, z = proxy.Proxy(5), torch.randn(8, generator=torch.Generator().manual_seed(0)).double()
    z.requires_grad_()
    one.rewards(z[None], 7, own=False).mean().backward()
    torch.testing.assert_close(-z.grad, one.gradient(z.detach(), 7))


def test_the_validation_loss_is_the_mean_loss_without_the_noise():
    one, z = proxy.Proxy(5), torch.zeros(8).double()
    x, y = one.examples(0, 200_000)
    with_noise = ((x @ z - y).square() / 2).mean().item()
    assert with_noise - proxy.NOISE**2 / 2 == pytest.approx(one.loss(z), rel=0.02)
    assert one.loss(one.best) == 0


def test_own_minibatches_differ_and_shared_ones_do_not():
    one, twins = proxy.Proxy(0), torch.ones(3, 8).double()
    shared, own = one.rewards(twins, 0, own=False), one.rewards(twins, 0, own=True)
    assert torch.equal(shared[0], shared[2])
    assert not torch.equal(own[0], own[2])


@pytest.mark.parametrize(
    ("arm", "setting"),
    [
        ("plain", {"kappa": 32, "diffusion": 0.008, "lambda_m": 1}),
        ("together", {"kappa": 2, "diffusion": 0.128, "lambda_m": 5}),
        ("openai_es", {"sigma": 0.1, "lr": 2}),
        ("adam_three", {"lr": 0.15, "beta2": 0.99}),
    ],
)
def test_every_kind_of_arm_improves_and_repeats_to_the_bit(arm, setting):
    found = proxy.solve(arm, 1, 400, setting)
    assert found["loss"] < found["start"] / 2
    assert found == proxy.solve(arm, 1, 400, setting)
