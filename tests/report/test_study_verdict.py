import pytest
from fabricated_study import FINDINGS

from evolora.report.study_data import read_study
from evolora.report.study_verdict import judged, study_verdict


def verdict_of(make_study, **changes):
    return study_verdict(read_study(make_study(**changes)))


def findings(*holds):
    return [{**found, "holds": held} for found, held in zip(FINDINGS, holds, strict=False)]


@pytest.mark.parametrize(
    ("holds", "headline"),
    [
        ((True, True, True), "All 3 claims hold"),
        ((True, False, True), "2 of 3 claims hold"),
        ((False, True, False), "1 of 3 claims holds"),
        ((False, False, False), "None of 3 claims holds"),
        ((True, True), "2 of 3 claims hold"),
        ((None, None, None), "No claim was judged"),
        ((), "No claim was judged"),
    ],
)
def test_the_headline_counts_the_claims_that_hold(make_study, holds, headline):
    assert verdict_of(make_study, findings=findings(*holds)).headline == headline


@pytest.mark.parametrize(
    ("holds", "headline"),
    [
        ((True,), "The claim holds"),
        ((False,), "The claim does not hold"),
        ((True, True), "Both claims hold"),
    ],
)
def test_few_claims_are_not_counted(make_study, holds, headline):
    found = findings(*holds)
    plan = {"claims": [{"name": finding["claim"], "says": "x"} for finding in found]}
    assert verdict_of(make_study, findings=found, plan=plan).headline == headline


def test_each_claim_has_a_sentence_with_its_words(make_study):
    remarks = verdict_of(make_study).remarks
    assert len(remarks) == 3
    assert remarks[0].startswith("Does not hold: the searched adapter ends within two points")
    assert remarks[1].endswith("raises the reward: 0.41 (eggroll) against 0.29 (replicator).")


def test_a_claim_without_a_finding_and_a_finding_without_a_claim_are_told(make_study):
    stray = {**FINDINGS[0], "claim": "stray"}
    found = judged(read_study(make_study(findings=[stray])))
    assert [claim.name for claim in found] == [*(finding["claim"] for finding in FINDINGS), "stray"]
    assert found[0].mark == "was not judged"
    assert found[0].measured() == []
    assert found[3].says == "stray"


def test_the_numbers_are_told_and_what_came_to_nothing_is_a_dash(make_study):
    empty = {
        "claim": FINDINGS[1]["claim"],
        "holds": False,
        "effect": None,
        "ci": [None, None],
        "p": None,
        "n": 8,
    }
    known, nothing, _ = judged(read_study(make_study(findings=[FINDINGS[0], empty])))
    assert dict(known.measured()) == {
        "Effect": "−0.061",  # noqa: RUF001
        "95 % interval": "−0.09 to −0.03",  # noqa: RUF001
        "p": "0.0078",
        "Wins": "1 of 8",
        "n": "8",
    }
    assert [text for _, text in nothing.measured()] == ["–", "–", "–", "8"]  # noqa: RUF001


def test_a_correction_for_several_claims_is_told(make_study):
    claim = judged(read_study(make_study(findings=[{**FINDINGS[0], "p_holm": 0.0156}])))[0]
    assert ("p after Holm", "0.0156") in claim.measured()


def test_too_few_seeds_are_warned_of(make_study):
    assert not any("can never reach" in remark for remark in verdict_of(make_study).remarks)
    assert "(5)" in verdict_of(make_study, seeds=range(5)).remarks[-1]
