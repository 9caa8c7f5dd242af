"""A run with a method that keeps a population leaves it beside the adapter."""

import json

import pytest
import torch

from evolora.adapters import Adapter
from evolora.config import AdaptConfig
from evolora.job import carry_out


@pytest.fixture
def config(model_folder, tmp_path):
    task = tmp_path / "task.jsonl"
    rows = [
        {"prompt": f"{a}{b}:", "answer": "e", "split": split}
        for split, some in (("train", "abcd"), ("validation", "e"), ("test", "fg"))
        for a in some
        for b in "xy"
    ]
    task.write_text("\n".join(map(json.dumps, rows)))
    return AdaptConfig(
        model=str(model_folder),
        task=str(task),
        reward="logprob",
        method="replicator",
        options={"population": 4, "rank": 2, "kappa": 5.0, "export": "best"},
        batch=4,
        budget_steps=3,
        out=tmp_path / "run",
    )


def test_every_member_is_a_folder_and_the_index_says_what_it_weighs(config):
    carry_out(config)
    folder = config.out / "population"
    index = json.loads((folder / "index.json").read_text())
    assert {path.name for path in folder.iterdir()} == {*index, "index.json"}
    members = {name: Adapter.load(folder / name) for name in index}
    candidates = [name for name in index if name not in ("best", "mean")]
    assert len(candidates) == 4
    assert sum(index[name]["weight"] for name in candidates) == pytest.approx(1, abs=1e-12)
    assert all(member.provenance["base_fingerprint"] for member in members.values())
    adapter = Adapter.load(config.out / "adapter")
    twins = [
        name
        for name in candidates
        if all(torch.equal(f.b, members[name].modules[key].b) for key, f in adapter.modules.items())
    ]
    heaviest = max(index[name]["weight"] for name in candidates)
    assert any(index[name]["weight"] == heaviest for name in twins)


def test_replacing_the_run_takes_the_population_away(config):
    carry_out(config)
    carry_out(
        config.model_copy(update={"overwrite": True, "method": "eggroll", "options": {"population": 4}})
    )
    assert not (config.out / "population").exists()
