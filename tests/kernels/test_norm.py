"""rms_norm: right against float64, bitwise row-invariant, on both bodies."""

import pytest
import torch

from decodex.kernels import backend
from decodex.kernels.norm import rms_norm


@pytest.fixture(params=["native", "reference"])
def body(request):
    if request.param == "native" and backend.cpu_library() is None:
        pytest.skip("no CPU library on this machine")
    with backend.set_backend(request.param):
        yield request.param


@pytest.mark.parametrize("width", [1, 3, 8, 31, 64, 100, 576, 4097])
def test_matches_float64(body, width):
    torch.manual_seed(width)
    x, weight = torch.randn(5, width) * 3, torch.randn(width)
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(rms_norm(x, weight, 1e-5).double(), expected, rtol=1e-6, atol=1e-9)


def test_a_row_has_the_same_bits_in_any_batch(body):
    torch.manual_seed(0)
    x, weight = torch.randn(300, 577), torch.randn(577)
    alone = torch.cat([rms_norm(row[None], weight, 1e-6) for row in x])
    for m in [*range(1, 41), 64, 100, 256, 300]:
        assert torch.equal(rms_norm(x[:m], weight, 1e-6), alone[:m]), m


def test_in_place_strided_and_empty(body):
    torch.manual_seed(1)
    x, weight = torch.randn(4, 40)[:, 3:36], torch.randn(33)
    expected = rms_norm(x, weight, 1e-6)
    assert rms_norm(x, weight, 1e-6, out=x) is x
    assert torch.equal(x, expected)
    assert rms_norm(torch.empty(0, 33), weight, 1e-6).shape == (0, 33)


def test_zero_row_is_zero_and_nan_stays_in_its_row(body):
    x, weight = torch.zeros(3, 16), torch.ones(16)
    x[1, 2] = float("nan")
    out = rms_norm(x, weight, 1e-6)
    assert (out[[0, 2]] == 0).all()
    assert out[1].isnan().all()


def test_wrong_arguments_say_what_was_expected(body):
    x, weight = torch.randn(2, 8), torch.randn(8)
    with pytest.raises(ValueError, match=r"x: expected float32 \[T, H\], got float64 \[2, 8\]"):
        rms_norm(x.double(), weight, 1e-6)
    with pytest.raises(ValueError, match=r"weight: expected float32 \[8\], got float32 \[7\]"):
        rms_norm(x, weight[:7], 1e-6)
    with pytest.raises(ValueError, match=r"out: expected float32 \[2, 8\] on cpu, got float32 \[2, 9\]"):
        rms_norm(x, weight, 1e-6, out=torch.empty(2, 9))
