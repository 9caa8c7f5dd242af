"""The record of the convex proxy: its numbers can be made again, and the page says what it says."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def proxy(script):
    return script("replicator_proxy")


@pytest.fixture(scope="module")
def record(recorded):
    return recorded("replicator_proxy")


def test_the_record_was_made_with_the_settings_of_the_script(proxy, record):
    assert record["settings"] == proxy.settings()
    assert not set(proxy.SEEDS) & set(proxy.TUNING)
    assert len(proxy.SEEDS) == 12
    assert proxy.STEPS * proxy.POPULATION == proxy.EVALUATIONS == 400


@pytest.mark.parametrize("arm", ["plain", "together", "covariance", "openai_es", "adam_three"])
def test_a_loss_is_made_again(proxy, record, arm):
    for export, chosen in record["chosen"][arm].items():
        again = proxy.run(arm, chosen["setting"], 3)[export]
        assert again == pytest.approx(record["losses"][arm][export][3], rel=1e-3)


def test_every_setting_is_of_the_arms_grid(proxy, record):
    for arm in proxy.ARMS:
        for chosen in record["chosen"][arm].values():
            assert all(value in proxy.grid(arm)[axis] for axis, value in chosen["setting"].items())


def test_a_gradient_is_that_of_the_shared_rewards(proxy):
    one, z = proxy.Proxy(5), torch.randn(8, generator=torch.Generator().manual_seed(0)).double()
    z.requires_grad_()
    one.rewards(z[None], 7, own=False).mean().backward()
    torch.testing.assert_close(-z.grad, one.gradient(z.detach(), 7))


def test_the_validation_loss_is_the_mean_loss_without_the_noise(proxy):
    one, z = proxy.Proxy(5), torch.zeros(8).double()
    x, y = one.examples(0, 200_000)
    with_noise = ((x @ z - y).square() / 2).mean().item()
    assert with_noise - proxy.NOISE**2 / 2 == pytest.approx(one.loss(z), rel=0.02)
    assert one.loss(one.best) == 0


def test_own_minibatches_differ_and_shared_ones_do_not(proxy):
    one, twins = proxy.Proxy(0), torch.ones(3, 8).double()
    shared, own = one.rewards(twins, 0, own=False), one.rewards(twins, 0, own=True)
    assert torch.equal(shared[0], shared[2])
    assert not torch.equal(own[0], own[2])


def test_summary_and_verdict_follow_from_the_losses(proxy, record):
    again = json.loads(json.dumps(proxy.summarise(record)))
    assert again["verdict"] == record["verdict"]
    for row in again["summary"]:
        losses = record["losses"][row["arm"]][row["export"]]
        assert len(losses) == len(proxy.SEEDS)
        assert row["loss"] == pytest.approx(np.mean(losses))
    for one, two in zip(again["minus_plain"], record["minus_plain"], strict=True):
        assert (one["arm"], one["export"], one["wins"]) == (two["arm"], two["export"], two["wins"])
        assert one["value"] == pytest.approx(two["value"])


def test_the_page_shows_the_table_of_the_record(proxy, record):
    page = (ROOT / "docs" / "methods.md").read_text()
    assert proxy.table(record) in page
    below, half = record["plain_below_start"], record["plain_below_half"]
    losses = {(row["arm"], row["export"]): row["loss"] for row in record["summary"]}
    for said in (
        f"(the start: {np.mean(record['start']):.2f})",
        f"below the start in {below} of 12 seeds, and below half of it\nin {half};",
    ):
        assert said in page
    assert 45 < losses["plain", "mean"] / losses["adam_three", "best"] < 55  # "by a factor of fifty"
    edges = {
        (arm, export)
        for arm, found in record["chosen"].items()
        for export, chosen in found.items()
        if {"kappa", "diffusion"} & set(chosen["at_edge"])
    }
    assert edges == {("own_minibatches", "mean")}
    assert record["verdict"] == {"mechanism_holds": False, "tuned_gradient_not_beaten": True}
