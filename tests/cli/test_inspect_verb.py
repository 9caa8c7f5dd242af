import pytest
import torch

from evolora.adapters import Adapter, Factors
from evolora.cli.inspect import _range, groups


def make_adapter(layers=(0, 1, 2)):
    generator = torch.Generator().manual_seed(0)

    def factors(d_out, d_in, rank, scale):
        return Factors(
            torch.randn(rank, d_in, generator=generator), torch.randn(d_out, rank, generator=generator), scale
        )

    modules = {}
    for layer in layers:
        modules[f"model.layers.{layer}.self_attn.q_proj"] = factors(6, 8, 2, 0.5)
        modules[f"model.layers.{layer}.mlp.up_proj"] = factors(10, 8, 3, 2.0)
    return Adapter(modules, base="toy/base", name="a", provenance={"method": "eggroll", "seed": 3})


@pytest.fixture
def folder(tmp_path):
    return make_adapter().save(tmp_path / "adapter")


def test_json_agrees_with_the_dense_deltas(run, only_object, folder):
    found = only_object(run("inspect", folder, "--json").stdout)
    adapter = make_adapter()
    assert (found["base"], found["parameters"], found["rank"]) == ("toy/base", adapter.parameters, 3)
    assert set(found["modules"]) == set(adapter.modules)
    for name, factors in adapter.modules.items():
        values = torch.linalg.svdvals(factors.delta().double())
        module = found["modules"][name]
        assert module["shape"] == list(factors.delta().shape)
        assert module["norm"] == pytest.approx(float(factors.delta().norm()), rel=1e-5)
        assert module["largest"] == pytest.approx(float(values[0]), rel=1e-5)
        assert 1 <= module["effective_rank"] <= factors.rank
    assert found["norm"] == pytest.approx(
        sum(m["norm"] ** 2 for m in found["modules"].values()) ** 0.5, rel=1e-6
    )
    assert found["norm"] == pytest.approx(sum(g["norm"] ** 2 for g in found["groups"]) ** 0.5, rel=1e-6)
    assert found["provenance"]["seed"] == 3


def test_the_table_groups_layers(run, folder):
    text = run("inspect", folder).stdout
    assert "model.layers.*.mlp.up_proj" in text
    assert "0-2" in text
    assert "10x8" in text
    assert "eggroll" in text


def test_groups_hold_every_module_once():
    row = {"shape": [1, 1], "rank": 1, "norm": 3.0, "largest": 1.0, "effective_rank": 1.0, "dora": False}
    found = groups({"h.0.q": row, "h.10.q": {**row, "rank": 4, "norm": 4.0, "dora": True}, "head": row})
    assert [(g["modules"], g["count"], g["layers"]) for g in found] == [
        ("h.*.q", 2, [0, 10]),
        ("head", 1, []),
    ]
    assert (found[0]["norm"], found[0]["rank"], found[0]["dora"]) == (5.0, [1, 4], True)


@pytest.mark.parametrize(
    ("values", "text"), [([], ""), ([3], "3"), ([1, 2, 3], "1-3"), ([2, 8], "2,8"), ([0, 2, 5, 9], "0,2,5,9")]
)
def test_ranges_are_short(values, text):
    assert _range(values) == text


def test_a_folder_that_is_no_adapter_is_one_line(run, tmp_path):
    result = run("inspect", tmp_path)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""
