"""Packed linears: right against float64, bitwise row-invariant, for any shape and layout, on both bodies."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decodex.kernels import backend
from decodex.kernels.linear import pack_linear
from decodex.kernels.reference import linear as reference

BODIES = ["native", "onednn", "rows"]
KINDS = ["bf16", "fp16", "fp32", "int8"]
ROWS = [*range(1, 41), 64, 100, 256, 300]


@pytest.fixture(params=BODIES)
def body(request, monkeypatch):
    """Each body of the layer: compiled, oneDNN-packed, one row at a time."""
    if request.param == "native":
        if backend.cpu_library() is None:
            pytest.skip("no CPU library on this machine")
        yield "native"
        return
    if request.param == "rows":
        monkeypatch.setattr(reference, "has_onednn", lambda: False)
    elif not reference.has_onednn():
        pytest.skip("no oneDNN on this machine")
    with backend.set_backend("reference"):
        yield request.param


def stored_weight(weight: Tensor, kind: str) -> Tensor:
    """What the layer really multiplies by, in float64."""
    if kind == "int8":
        quantized, scale = reference.quantize_int8(weight)
        return quantized.double() * scale.double()[:, None]
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[kind]
    return weight.to(dtype).double()


def assert_close(got: Tensor, expected: Tensor, x: Tensor, weight: Tensor) -> None:
    """Within 1e-6 of the sum of absolute products (the scale of rounding), element by element."""
    bound = x.double().abs() @ weight.abs().T * 1e-6 + 1e-6
    assert ((got.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (7, 3), (16, 64), (33, 65), (100, 576), (193, 129), (31, 1)])
def test_matches_float64_for_odd_shapes(body, kind, n, k):
    torch.manual_seed(n * 1000 + k)
    weight, bias = torch.randn(n, k), torch.randn(n)
    layer = pack_linear(weight, bias, kind=kind)
    assert (layer.in_features, layer.out_features, layer.kind) == (k, n, kind)
    stored = stored_weight(weight, kind)
    for m in (1, 2, 5, 7, 13):
        x = torch.randn(m, k)
        assert_close(layer(x), x.double() @ stored.T + bias.double(), x, stored)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_in_any_batch(body, kind):
    torch.manual_seed(0)
    layer = pack_linear(torch.randn(120, 200), torch.randn(120), kind=kind)
    x = torch.randn(max(ROWS), 200)
    alone = torch.cat([layer(x[i : i + 1]) for i in range(len(x))])
    for m in ROWS:
        assert torch.equal(layer(x[:m]), alone[:m]), m
        assert torch.equal(layer(x[-m:]), alone[-m:]), m


@pytest.mark.parametrize(("n", "k"), [(576, 1536), (960, 576), (512, 5632)])
def test_real_layer_shapes_are_row_invariant(body, n, k):
    torch.manual_seed(1)
    layer = pack_linear(torch.randn(n, k).bfloat16())
    x = torch.randn(300, k)
    whole = layer(x)
    for m in (1, 2, 3, 6, 7, 8, 32, 100, 256, 257):
        assert torch.equal(layer(x[:m]), whole[:m]), m


def test_bits_do_not_depend_on_the_number_of_threads(body):
    torch.manual_seed(2)
    layer, x = pack_linear(torch.randn(500, 300)), torch.randn(9, 300)
    before, num_threads = layer(x), torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(layer(x), before)
    finally:
        torch.set_num_threads(num_threads)


@pytest.mark.parametrize("kind", KINDS)
def test_bodies_agree(kind):
    if backend.cpu_library() is None:
        pytest.skip("no CPU library on this machine")
    torch.manual_seed(3)
    weight, bias, x = torch.randn(333, 777), torch.randn(333), torch.randn(20, 777)
    native = pack_linear(weight, bias, kind=kind)
    with backend.set_backend("reference"):
        other = pack_linear(weight, bias, kind=kind)
    assert type(native) is not type(other)
    difference = (native(x) - other(x)).norm() / other(x).norm()
    assert difference < 1e-6
    ids = torch.randint(333, (11,))
    assert torch.equal(native.rows(ids), other.rows(ids))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 70), st.integers(1, 90), st.integers(1, 20), st.integers(0, 3), st.sampled_from(KINDS))
def test_any_shape_and_alignment(n, k, m, shift, kind):
    """Reads and writes stay inside: guard values around a strided input and output survive."""
    generator = torch.Generator().manual_seed(n * 8191 + k * 127 + m)
    weight = torch.randn(n, k, generator=generator)
    layer = pack_linear(weight, kind=kind)
    wide = torch.randn(m, k + 5, generator=generator)
    x, target = wide[:, shift : shift + k], torch.full((m, n + 5), 7.0)
    out = layer(x, out=target[:, shift : shift + n])
    stored = stored_weight(weight, kind)
    assert_close(out, x.double() @ stored.T, x, stored)
    assert (target[:, :shift] == 7).all()
    assert (target[:, shift + n :] == 7).all()


def test_add_to_accumulates_in_place(body):
    torch.manual_seed(4)
    layer, x, residual = pack_linear(torch.randn(37, 50), torch.randn(37)), torch.randn(8, 50), torch.randn(8, 37)
    expected = residual + layer(x)
    assert layer(x, add_to=residual) is residual
    assert torch.equal(residual, expected)


def test_transposed_weight_and_input(body):
    torch.manual_seed(5)
    weight, x = torch.randn(40, 30).T, torch.randn(40, 6).T
    torch.testing.assert_close(pack_linear(weight)(x), x @ weight.T)


def test_no_rows(body):
    layer = pack_linear(torch.randn(5, 4))
    assert layer(torch.empty(0, 4)).shape == (0, 5)
    assert layer.rows(torch.empty(0, dtype=torch.int64)).shape == (0, 4)


@pytest.mark.parametrize("m", [1, 20])
def test_no_columns_leaves_the_bias(body, m):
    bias = torch.tensor([1.0, 2.0])
    assert torch.equal(pack_linear(torch.empty(2, 0), bias)(torch.empty(m, 0)), bias.expand(m, 2))


def test_callers_in_several_threads_get_the_same_bits(body):
    """The interleaving buffer belongs to the calling thread."""
    torch.manual_seed(8)
    layer, x = pack_linear(torch.randn(300, 200)), torch.randn(40, 200)
    expected = layer(x)
    with ThreadPoolExecutor(4) as executor:
        assert all(torch.equal(out, expected) for out in executor.map(lambda _: layer(x), range(64)))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_the_stored_weight(body, kind):
    torch.manual_seed(6)
    weight = torch.randn(75, 43)
    ids = torch.tensor([0, 74, 3, 3, 40])
    rows = pack_linear(weight, kind=kind).rows(ids)
    torch.testing.assert_close(rows.double(), stored_weight(weight, kind)[ids], rtol=1e-7, atol=0)


def test_nan_and_inf_stay_in_their_row(body):
    torch.manual_seed(7)
    layer, x = pack_linear(torch.randn(20, 30)), torch.randn(5, 30)
    clean = layer(x)
    x[2, 3] = float("nan")
    x[4, 0] = float("inf")
    out = layer(x)
    assert torch.equal(out[[0, 1, 3]], clean[[0, 1, 3]])
    assert out[2].isnan().all()
    assert not out[4].isfinite().any()


def test_int8_of_an_all_zero_channel_is_zero(body):
    weight = torch.zeros(3, 8)
    weight[1] = 1.0
    assert torch.equal(pack_linear(weight, kind="int8")(torch.ones(1, 8)), torch.tensor([[0.0, 8.0, 0.0]]))


def test_half_the_memory_in_bf16():
    if backend.cpu_library() is None:
        pytest.skip("no CPU library on this machine")
    assert pack_linear(torch.randn(160, 100).bfloat16()).nbytes == 160 * 100 * 2
    assert pack_linear(torch.randn(160, 100), kind="int8").nbytes == 160 * 100 + 160 * 4


def test_wrong_arguments_say_what_was_expected(body):
    layer = pack_linear(torch.randn(5, 4))
    x = torch.randn(2, 4)
    cases = [
        (lambda: layer(torch.randn(2, 3)), r"x: expected float32 \[M, 4\], got float32 \[2, 3\]"),
        (lambda: layer(torch.randn(4)), r"x: expected float32 \[M, 4\], got float32 \[4\]"),
        (lambda: layer(x.double()), r"x: expected float32 \[M, 4\], got float64"),
        (lambda: layer(x, out=torch.empty(2, 6)), r"out: expected float32 \[2, 5\] on cpu, got float32 \[2, 6\]"),
        (lambda: layer(x, add_to=torch.empty(3, 5)), r"add_to: expected float32 \[2, 5\] on cpu, got float32 \[3, 5\]"),
        (lambda: layer(x, out=torch.empty(5, 2).T), r"out: expected contiguous columns"),
        (lambda: layer(x, out=torch.empty(2, 5), add_to=torch.empty(2, 5)), r"expected at most one"),
        (lambda: layer.rows(torch.tensor([5])), r"ids: expected values in 0..4, got 5..5"),
        (lambda: layer.rows(torch.tensor([-1])), r"ids: expected values in 0..4, got -1..-1"),
        (lambda: layer.rows(torch.tensor([1.0])), r"ids: expected int64 \[T\], got float32"),
        (lambda: pack_linear(torch.randn(3)), r"weight: expected .* \[N, K\], got float32 \[3\]"),
        (lambda: pack_linear(torch.zeros(3, 2, dtype=torch.int32)), r"weight: expected .*, got int32"),
        (lambda: pack_linear(torch.randn(3, 2), torch.randn(2)), r"bias: expected \[3\], got float32 \[2\]"),
        (lambda: pack_linear(torch.randn(3, 2), kind="int4"), r"kind: expected auto, .*, got 'int4'"),
    ]
    for call, text in cases:
        with pytest.raises(ValueError, match=text):
            call()
