"""rope_and_store_: right against float64 complex rotation, exact stores, bitwise row-invariant, on both bodies."""

import pytest
import torch
from torch import Tensor

from decodex.kernels import backend
from decodex.kernels.rope import rope_and_store_


@pytest.fixture(params=["native", "reference"])
def body(request):
    if request.param == "native" and backend.cpu_library() is None:
        pytest.skip("no CPU library on this machine")
    with backend.set_backend(request.param):
        yield request.param


def angles_table(num_positions: int, rotary_dim: int) -> tuple[Tensor, Tensor]:
    """(angles [P, R/2] float64, cos_sin [P, R] float32)."""
    frequencies = 10000.0 ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * frequencies
    return angles, torch.cat((angles.cos(), angles.sin()), 1).float()


def rotated(heads: Tensor, angles: Tensor, norm: Tensor | None, eps: float) -> Tensor:
    """heads [T,H,D] -> float64, each pair (i, i + R/2) as a complex number times e^(i angle)."""
    heads = heads.double()
    if norm is not None:
        heads = heads / (heads.square().mean(-1, keepdim=True) + eps).sqrt() * norm.double()
    half = angles.shape[1]
    turned = (
        torch.complex(heads[..., :half], heads[..., half : 2 * half])
        * torch.polar(torch.ones_like(angles), angles)[:, None]
    )
    return torch.cat((turned.real, turned.imag, heads[..., 2 * half :]), -1)


@pytest.mark.parametrize(
    ("q_heads", "kv_heads", "dim", "v_dim", "rotary_dim"),
    [(9, 3, 64, 64, 64), (2, 1, 6, 5, 6), (4, 4, 32, 16, 12), (1, 1, 2, 1, 2), (3, 1, 40, 40, 24)],
)
@pytest.mark.parametrize("with_norm", [False, True])
def test_matches_complex_rotation(body, q_heads, kv_heads, dim, v_dim, rotary_dim, with_norm):
    torch.manual_seed(dim)
    rows, num_slots = 11, 40
    widths = [q_heads * dim, kv_heads * dim, kv_heads * v_dim]
    qkv = torch.randn(rows, sum(widths) + 3)[:, : sum(widths)]
    q, k, v = (part.clone() for part in qkv.split(widths, 1))
    positions = torch.randint(50, (rows,), dtype=torch.int32)
    slots = torch.randperm(num_slots)[:rows]
    slots[4] = -1
    angles, cos_sin = angles_table(50, rotary_dim)
    norms = (torch.rand(dim) + 0.5, torch.rand(dim) + 0.5) if with_norm else (None, None)
    k_cache, v_cache = torch.full((num_slots, kv_heads, dim), 7.0), torch.full((num_slots, kv_heads, v_dim), 7.0)
    rope_and_store_(qkv, positions, cos_sin, slots, k_cache, v_cache, *norms, eps=1e-6)
    at = angles[positions.long()]
    want_q = rotated(q.view(rows, q_heads, dim), at, norms[0], 1e-6).reshape(rows, -1)
    want_k = rotated(k.view(rows, kv_heads, dim), at, norms[1], 1e-6)
    torch.testing.assert_close(qkv[:, : widths[0]].double(), want_q, rtol=1e-5, atol=2e-6)
    kept = slots >= 0
    torch.testing.assert_close(k_cache[slots[kept]].double(), want_k[kept], rtol=1e-5, atol=2e-6)
    assert torch.equal(v_cache[slots[kept]], v.view(rows, kv_heads, v_dim)[kept])
    untouched = torch.ones(num_slots, dtype=torch.bool)
    untouched[slots[kept]] = False
    assert (k_cache[untouched] == 7).all()
    assert (v_cache[untouched] == 7).all()


@pytest.mark.parametrize("with_norm", [False, True])
def test_a_row_has_the_same_bits_in_any_batch(body, with_norm):
    torch.manual_seed(0)
    qkv, positions = torch.randn(300, 5 * 64), torch.randint(99, (300,), dtype=torch.int32)
    norms = (torch.randn(64), torch.randn(64)) if with_norm else (None, None)
    cos_sin = angles_table(99, 64)[1]

    def run(begin: int, end: int) -> tuple[Tensor, Tensor]:
        rows, cache = qkv[begin:end].clone(), torch.zeros(2, 300, 1, 64)
        slots = torch.arange(begin, end)
        rope_and_store_(rows, positions[begin:end].clone(), cos_sin, slots, cache[0], cache[1], *norms)
        return rows[:, :192], cache[0, begin:end]

    alone = [run(i, i + 1) for i in range(300)]
    for m in [*range(1, 41), 64, 100, 256, 300]:
        q, k = run(0, m)
        assert torch.equal(q, torch.cat([a[0] for a in alone[:m]])), m
        assert torch.equal(k, torch.cat([a[1] for a in alone[:m]])), m


def test_wrong_arguments_say_what_was_expected_and_write_nothing(body):
    cos_sin = angles_table(10, 8)[1]
    cache = torch.zeros(6, 2, 8)
    good = {
        "qkv": torch.ones(2, 48),
        "positions": torch.zeros(2, dtype=torch.int32),
        "cos_sin": cos_sin,
        "slot_mapping": torch.tensor([0, 1]),
        "k_cache": cache.clone(),
        "v_cache": cache.clone(),
    }
    cases = [
        ({"qkv": torch.ones(2, 47)}, r"qkv: expected float32 \[T, Hq\*8 \+ 2\*8 \+ 2\*8\].*got float32 \[2, 47\]"),
        ({"qkv": torch.ones(2, 48).double()}, r"qkv: expected float32"),
        ({"positions": torch.zeros(2)}, r"positions: expected contiguous int32 \[2\], got float32 \[2\]"),
        ({"positions": torch.tensor([0, 10], dtype=torch.int32)}, r"positions: expected values in 0..9, got 0..10"),
        ({"positions": torch.tensor([-1, 0], dtype=torch.int32)}, r"positions: expected values in 0..9, got -1..0"),
        ({"slot_mapping": torch.tensor([0])}, r"slot_mapping: expected contiguous int64 \[2\], got int64 \[1\]"),
        ({"slot_mapping": torch.tensor([0, 6])}, r"slot_mapping: expected values below 6, got 6"),
        ({"cos_sin": torch.ones(10, 9)}, r"cos_sin: expected \[P, R\] with even R <= 8"),
        ({"v_cache": torch.zeros(6, 3, 8)}, r"k_cache, v_cache: expected"),
        ({"q_norm": torch.ones(9)}, r"q_norm: expected contiguous float32 \[8\], got float32 \[9\]"),
    ]
    for change, text in cases:
        with pytest.raises(ValueError, match=text):
            rope_and_store_(**{**good, **change})
    assert (good["qkv"] == 1).all()
    assert (good["k_cache"] == 0).all()


def test_no_rows(body):
    cache = torch.zeros(6, 2, 8)
    empty = torch.empty(0, dtype=torch.int64)
    rope_and_store_(torch.ones(0, 48), empty.int(), angles_table(10, 8)[1], empty, cache, cache.clone())
