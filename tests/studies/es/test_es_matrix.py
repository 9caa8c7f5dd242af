import pytest
import torch

from evolora.studies.es import matrices
from evolora.studies.es.matrix import ARMS, EsMatrix, search


def test_the_targets_are_what_they_are_said_to_be():
    for rank in (1, 4):
        base, target = matrices.pair("additive", rank, 3)
        assert torch.linalg.matrix_rank(target - base, rtol=1e-5) == rank
        assert ((target - base).norm() / base.norm()).item() == pytest.approx(0.5, rel=1e-5)
        again, longer = matrices.pair("dora", rank, 3)
        assert torch.equal(again, base)
        cosines = torch.cosine_similarity(longer, target)
        assert torch.allclose(cosines, torch.ones(matrices.D_OUT), atol=1e-5)
        logs = (matrices.rows(longer) / matrices.rows(base)).log()
        assert logs.std().item() == pytest.approx(0.3, rel=0.4)


@pytest.mark.parametrize("kind", ["additive", "dora"])
@pytest.mark.parametrize("arm", ARMS)
def test_no_search_ends_below_what_its_arm_can_reach(kind, arm):
    found = search(kind, arm, 2, 5, 0.5, 60)
    assert matrices.floor(kind, arm, 2, 5) - 1e-5 <= found < 1.05


def test_plain_eggroll_and_decomposed_learn():
    assert search("additive", "plain", 2, 5, 0.5, 100) < 0.75
    assert search("dora", "decomposed", 1, 5, 1.0, 200) < 0.3


def test_all_arms_meet_the_same_matrices_and_a_cell_repeats_to_the_bit():
    study, settings = EsMatrix(), {"steps": 5, "ranks": [1, 2]}
    options = {"kind": "dora", "arm": "decomposed", "lr": 0.5}
    found = study.cell(options, 1, settings)
    assert found == study.cell(options, 1, settings)
    assert found["error"] == pytest.approx(sum(found["errors"]) / 2)
    assert found["validation"] == -found["error"]
