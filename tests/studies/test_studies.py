import json

import pytest

from evolora.studies import load_study, run_study, studies
from evolora.studies.plan import make_plan

NAMES = tuple(studies())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Small files in the place of the data that studies read."""
    folder = tmp_path_factory.mktemp("data")
    labels = [(f"a {word} film, number {n}", word == "good") for n in range(60) for word in ("good", "bad")]
    rows = [json.dumps({"sentence": text, "label": int(label)}) for text, label in labels]
    (folder / "sentiment.jsonl").write_text("\n".join(rows))
    (folder / "corpus.txt").write_text(" ".join(f"word{n * n % 997}" for n in range(48 * 200)))
    return {"sentiment": folder / "sentiment.jsonl", "corpus": folder / "corpus.txt"}


@pytest.mark.parametrize("name", NAMES)
def test_every_study_runs_at_smoke_and_answers_each_of_its_claims(name, tmp_path, files):
    study = load_study(name)
    data = {kind: path for kind, path in files.items() if kind in study.data}
    record = run_study(study, "smoke", tmp_path, data=data)
    assert [finding["claim"] for finding in record["findings"]] == [claim.name for claim in study.claims]
    assert all(finding["words"] for finding in record["findings"])
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_has_a_fair_plan_with_enough_seeds(name):
    study = load_study(name)
    assert {"smoke", "small", "full"} == set(study.presets)
    plans = {preset: make_plan(study, preset) for preset in study.presets}
    assert not plans["small"].warnings
    assert not plans["full"].warnings
    assert all(claim.falsified_by for claim in study.claims)
