"""silu_mul: right against float64 over the whole range, bitwise row-invariant, on both bodies."""

import pytest
import torch

from decodex.kernels import backend
from decodex.kernels.activation import silu_mul


@pytest.fixture(params=["native", "reference"])
def body(request):
    if request.param == "native" and backend.cpu_library() is None:
        pytest.skip("no CPU library on this machine")
    with backend.set_backend(request.param):
        yield request.param


def test_matches_float64_over_the_range(body):
    gate = torch.linspace(-80, 200, 100_003)[None]
    up = torch.full_like(gate, 1.5)
    wide = gate.double()
    expected = wide / (1 + torch.exp(-wide)) * 1.5
    torch.testing.assert_close(silu_mul(torch.cat((gate, up), 1)).double(), expected, rtol=1e-6, atol=1e-37)


def test_limits(body):
    inf = float("inf")
    x = torch.tensor([[0.0, -200.0, -3e38, 3e38, inf, float("nan"), 1, 1, 1, 1, 1, 1]])
    out = silu_mul(x)[0]
    assert out[0] == 0
    assert out[1:3].abs().max() < 2
    assert out[1].abs() < 1e-35
    assert out[3] == torch.tensor(3e38)
    assert out[4] == inf
    assert out[5].isnan()


@pytest.mark.parametrize("width", [1, 7, 8, 100, 1536])
def test_a_row_has_the_same_bits_in_any_batch(body, width):
    """A reference body may use another routine for another size; only the compiled one promises every width."""
    torch.manual_seed(width)
    x = torch.randn(300, 2 * width)
    alone = torch.cat([silu_mul(row[None]) for row in x])
    for m in [*range(1, 41), 64, 100, 256, 300]:
        assert torch.equal(silu_mul(x[:m]), alone[:m]), m


def test_strided_and_empty(body):
    torch.manual_seed(0)
    wide = torch.randn(4, 40)
    out = torch.empty(4, 30)[:, 2:17]
    assert torch.equal(silu_mul(wide[:, 5:35], out=out), silu_mul(wide[:, 5:35].contiguous()))
    assert silu_mul(torch.empty(0, 8)).shape == (0, 4)


def test_wrong_arguments_say_what_was_expected(body):
    with pytest.raises(ValueError, match=r"x: expected float32 \[T, 2I\], got float32 \[2, 7\]"):
        silu_mul(torch.randn(2, 7))
    with pytest.raises(ValueError, match=r"x: expected float32 \[T, 2I\], got bfloat16 \[2, 8\]"):
        silu_mul(torch.randn(2, 8).bfloat16())
    with pytest.raises(ValueError, match=r"out: expected float32 \[2, 4\] on cpu, got float32 \[2, 8\]"):
        silu_mul(torch.randn(2, 8), out=torch.empty(2, 8))
