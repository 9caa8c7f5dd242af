import numpy as np
import pytest
import torch

from evolora.adapters import Factors
from evolora.diagnostics import spectra as module
from evolora.diagnostics.deltas import dense
from evolora.diagnostics.spectra import singular_values, spectra_of, summary


def brute_force(delta):
    return np.linalg.svd(delta.double().numpy(), compute_uv=False)


def test_factors_and_dense_deltas_have_the_spectrum_of_a_full_svd(make_adapter, shapes, monkeypatch):
    monkeypatch.setattr(module, "_COLUMNS", 7)
    adapter = make_adapter(shapes, rank=3)
    found, same = spectra_of(adapter.modules), spectra_of(dense(adapter.modules))
    union = []
    for name, factors in adapter.modules.items():
        values = brute_force(factors.delta())
        union.append(values)
        share = values / values.sum()
        share = share[share > 1e-9]
        entropy = -(share * np.log(share)).sum()
        for one in (found.modules[name], same.modules[name]):
            assert one.norm == pytest.approx(np.linalg.norm(values), rel=1e-5)
            assert one.stable_rank == pytest.approx((values**2).sum() / values.max() ** 2, rel=1e-5)
            assert one.effective_rank == pytest.approx(np.exp(entropy), rel=1e-4)
            for k in (1, 4, 16):
                assert one.energy[k] == pytest.approx((values[:k] ** 2).sum() / (values**2).sum(), rel=1e-5)
    values = np.sort(np.concatenate(union))[::-1]
    assert found.whole.stable_rank == pytest.approx((values**2).sum() / values.max() ** 2, rel=1e-5)
    assert found.whole.energy[4] == pytest.approx((values[:4] ** 2).sum() / (values**2).sum(), rel=1e-5)
    assert found.whole.effective_rank == pytest.approx(same.whole.effective_rank, rel=1e-4)


@pytest.mark.parametrize("shape", [(9, 20), (20, 9)])
def test_all_singular_values_of_a_dense_delta(draw, shape):
    delta = draw(*shape)
    torch.testing.assert_close(
        singular_values(delta), torch.from_numpy(brute_force(delta).copy()), rtol=1e-6, atol=1e-6
    )


def test_closed_forms():
    equal = summary(torch.full((5,), 3.0, dtype=torch.float64), (1, 2, 9))
    assert (equal.stable_rank, equal.effective_rank) == (pytest.approx(5), pytest.approx(5))
    assert equal.energy == {1: pytest.approx(0.2), 2: pytest.approx(0.4), 9: pytest.approx(1)}
    one = Factors(torch.ones(1, 7), torch.ones(3, 1))
    whole = spectra_of({"x": one}).whole
    assert (whole.stable_rank, whole.effective_rank) == (pytest.approx(1), pytest.approx(1))
    assert whole.norm == pytest.approx(21**0.5)


def test_a_delta_of_zeros_is_all_zeros():
    nothing = Factors(torch.ones(2, 7), torch.zeros(3, 2))
    found = spectra_of({"x": nothing, "y": torch.zeros(4, 4)})
    for one in (*found.modules.values(), found.whole):
        assert (one.norm, one.stable_rank, one.effective_rank, one.energy[1]) == (0, 0, 0, 0)
