import json

import pytest

from evolora.studies import load_study, run_study, studies
from evolora.studies.plan import make_plan

NAMES = tuple(studies())


@pytest.mark.parametrize("name", NAMES)
def test_every_study_runs_at_smoke_and_answers_each_of_its_claims(name, tmp_path):
    study = load_study(name)
    record = run_study(study, "smoke", tmp_path)
    assert [finding["claim"] for finding in record["findings"]] == [claim.name for claim in study.claims]
    assert all(finding["words"] and finding["n"] >= 1 for finding in record["findings"])
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_has_a_fair_plan_with_enough_seeds(name):
    study = load_study(name)
    assert {"smoke", "small", "full"} == set(study.presets)
    plans = {preset: make_plan(study, preset) for preset in study.presets}
    assert not plans["small"].warnings
    assert not plans["full"].warnings
    assert all(claim.falsified_by for claim in study.claims)
