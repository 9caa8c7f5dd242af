import pytest
import torch

from evolora.engine.layers import _add_product


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 9])
@pytest.mark.parametrize("rank", [1, 4])
def test_every_kernel_adds_the_same_product_in_place(dtype, rows, rank):
    generator = torch.Generator().manual_seed(rows)
    groups, d_out = 3, 40
    y = torch.randn(groups, rows, d_out, generator=generator).to(dtype)
    # as the layers hand them over: a part of a wider projection, and a transposed B
    u = torch.randn(groups, rows, rank + 2, generator=generator).to(dtype)[..., 1 : rank + 1]
    up = torch.randn(groups, d_out, rank, generator=generator).to(dtype).transpose(1, 2)
    expected = y.double() + u.double() @ up.double()
    where = y.data_ptr()
    _add_product(y, u, up)
    assert y.data_ptr() == where
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(y.double(), expected, atol=tolerance, rtol=tolerance)
