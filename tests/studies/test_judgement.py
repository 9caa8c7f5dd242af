from math import nan

import pytest

from evolora.studies.judgement import compared, corrected, gained, improved
from evolora.studies.study import Cells, Finding


def cells(**arms):
    seeds = tuple(range(len(next(iter(arms.values())))))
    results = {
        arm: {seed: {"loss": value, "start": 2.0} for seed, value in zip(seeds, values, strict=True)}
        for arm, values in arms.items()
    }
    return Cells(seeds, results, {})


LOW, HIGH = [1.0, 1.1, 0.9, 1.2, 1.0, 0.8, 1.1], [1.5, 1.8, 1.3, 1.9, 1.6, 1.2, 1.7]


def test_the_better_arm_is_better_whichever_way_the_number_goes():
    found = compared(cells(a=LOW, b=HIGH), "claim", "a", "b", "loss", higher_is_better=False)
    assert found.holds
    assert found.wins == found.n == 7
    assert found.effect == pytest.approx(sum(HIGH) / 7 - sum(LOW) / 7)
    turned = compared(cells(a=LOW, b=HIGH), "claim", "a", "b", "loss")
    assert not turned.holds
    assert turned.effect == -found.effect
    assert turned.wins == 0
    assert turned.p == found.p


def test_a_lost_pair_is_left_out_and_told_and_breaks_a_claim_about_every_seed():
    lost = [nan, *LOW[1:]]
    found = compared(cells(a=lost, b=HIGH), "claim", "a", "b", "loss", higher_is_better=False)
    assert found.n == 6
    assert "1 pairs came to nothing" in found.words
    assert gained(cells(a=lost), "claim", "a", "loss", "start", higher_is_better=False).holds
    assert not improved(cells(a=lost), "claim", "a", "loss", "start", higher_is_better=False).holds
    assert improved(cells(a=LOW), "claim", "a", "loss", "start", higher_is_better=False).holds
    assert not improved(cells(a=[2.1, *LOW[1:]]), "claim", "a", "loss", "start", higher_is_better=False).holds


def test_nothing_left_is_no_verdict():
    found = compared(cells(a=[nan, nan], b=[1.0, 2.0]), "claim", "a", "b", "loss")
    assert not found.holds
    assert found.n == 0


def test_what_does_not_survive_holm_does_not_hold_and_says_so():
    def finding(p, holds=True):
        return Finding("claim", holds, 1.0, (0.5, 1.5), p, 8, "words")

    found = corrected([finding(0.04), finding(0.001), finding(nan), finding(0.5, holds=False)])
    assert [one.holds for one in found] == [False, True, True, False]
    assert [one.p_holm for one in found[:2]] == pytest.approx([0.08, 0.003])
    assert "not among 3 tests (Holm's p 0.08)" in found[0].words
    assert found[1].words == found[3].words == "words"
