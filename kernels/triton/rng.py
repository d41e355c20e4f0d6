"""Counter-based noise in Triton: bit-equal to `kernels/reference/rng.py`, whose constants these are."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from decodex.kernels.triton.launch import TILE, launch, num_tiles, on_device

_MULTIPLIER_0 = tl.constexpr(0xD2511F53)
_MULTIPLIER_1 = tl.constexpr(0xCD9E8D57)
_WEYL_0 = tl.constexpr(0x9E3779B9)
_WEYL_1 = tl.constexpr(0xBB67AE85)
_LN2_HIGH = tl.constexpr(0.693359375)
_LN2_LOW = tl.constexpr(-2.12194440e-4)
_LOG2_E = tl.constexpr(1.44269504088896341)
_EXP_LOWEST = tl.constexpr(-87.0)


@triton.jit
def log_positive(x):
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23
    f = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    e = exponent.to(tl.float32)
    square = f * f
    p = -0.07635588198900223 * f + 0.1276330053806305
    p = p * f + -0.13160595297813416
    p = p * f + 0.14201557636260986
    p = p * f + -0.16623297333717346
    p = p * f + 0.20001232624053955
    p = p * f + -0.250008225440979
    p = p * f + 0.3333333134651184
    y = (square * f) * p
    y = y - square * 0.5
    y = y + e * _LN2_LOW
    y = f + y
    return y + e * _LN2_HIGH


@triton.jit
def exp_nonpositive(x):
    clamped = tl.where(x > _EXP_LOWEST, x, _EXP_LOWEST)
    n = (clamped * _LOG2_E - 0.5).to(tl.int32)
    e = n.to(tl.float32)
    r = clamped - e * _LN2_HIGH
    r = r - e * _LN2_LOW
    p = 0.001381418900564313 * r + 0.008368914015591145
    p = p * r + 0.04166840761899948
    p = p * r + 0.1666651964187622
    p = p * r + 0.4999999403953552
    y = ((r * r) * p + r) + 1.0
    y = y * ((n + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(x > _EXP_LOWEST, y, 0.0)


@triton.jit
def philox(c0, position, use, window, seed):
    """Four words of calls c0 [N] uint32; position, use (purpose | sibling << 8), window and seed are the row's."""
    c1 = tl.zeros_like(c0) + position.to(tl.uint32)
    c2 = tl.zeros_like(c0) + use.to(tl.uint32)
    c3 = tl.zeros_like(c0) + window.to(tl.uint32)
    k0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    k1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(c0, _MULTIPLIER_0), c0 * _MULTIPLIER_0
        high1, low1 = tl.umulhi(c2, _MULTIPLIER_1), c2 * _MULTIPLIER_1
        c0 = high1 ^ c1 ^ k0
        c2 = high0 ^ c3 ^ k1
        c1 = low1
        c3 = low0
        k0 = k0 + _WEYL_0
        k1 = k1 + _WEYL_1
    return c0, c1, c2, c3


@triton.jit
def uniform_of(words):
    return ((words >> 9).to(tl.int32).to(tl.float32) + 0.5) * 1.1920928955078125e-07  # 2^-23


@triton.jit
def load_stream(streams, row, purpose, IS_KEYED: tl.constexpr):
    """use and window of a row: streams [L] int64 holds window | sibling << 32, and is not read unless IS_KEYED."""
    use = tl.full([], 0, tl.int64) + purpose
    window = tl.full([], 0, tl.int64)
    if IS_KEYED:
        stream = tl.load(streams + row)
        use += (stream >> 32) << 8
        window = stream & 0xFFFFFFFF
    return use, window


@triton.jit
def gumbel_tile(seed, position, use, window, first, N: tl.constexpr):
    """Noise [N] fp32 of tokens first, first + 1, ... (first and N multiples of 4): one Philox call serves four."""
    calls = (first // 4 + tl.arange(0, N // 4)).to(tl.uint32)
    c0, c1, c2, c3 = philox(calls, position, use, window, seed)
    words = tl.interleave(tl.interleave(c0, c2), tl.interleave(c1, c3))
    return -log_positive(-log_positive(uniform_of(words)))


@triton.jit
def _gumbel_noise(
    noise,  # [L, V] fp32, written
    seeds,  # [L] int64
    positions,  # [L] int64
    streams,  # [L] int64
    V,
    purpose,
    TILE: tl.constexpr,
    IS_KEYED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * TILE
    ids = first + tl.arange(0, TILE)
    use, window = load_stream(streams, row, purpose, IS_KEYED)
    values = gumbel_tile(tl.load(seeds + row), tl.load(positions + row), use, window, first, TILE)
    tl.store(noise + row * V + ids, values, mask=ids < V)


@triton.jit
def _uniform(
    coins,  # [L] fp32, written
    seeds,  # [L] int64
    positions,  # [L] int64
    streams,  # [L] int64
    purpose,
    IS_KEYED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    use, window = load_stream(streams, row, purpose, IS_KEYED)
    words, _, _, _ = philox(tl.full([], 0, tl.uint32), tl.load(positions + row), use, window, tl.load(seeds + row))
    tl.store(coins + row, uniform_of(words))


@on_device
def gumbel_noise(
    seeds: Tensor, positions: Tensor, vocab_size: int, purpose: int, streams: Tensor | None = None
) -> Tensor:
    """[L] int64 seeds, positions and streams -> [L, V] fp32."""
    num_rows = seeds.shape[0]
    noise = torch.empty(num_rows, vocab_size, device=seeds.device)
    if num_rows:
        grid = (num_rows, num_tiles(vocab_size))
        key = (seeds.contiguous(), positions.contiguous(), seeds if streams is None else streams)
        launch(_gumbel_noise, grid, noise, *key, vocab_size, purpose, TILE=TILE, IS_KEYED=streams is not None)
    return noise


@on_device
def uniform(seeds: Tensor, positions: Tensor, purpose: int, streams: Tensor | None = None) -> Tensor:
    """[L] int64 seeds, positions and streams -> [L] fp32."""
    num_rows = seeds.shape[0]
    coins = torch.empty(num_rows, device=seeds.device)
    if num_rows:
        key = (seeds.contiguous(), positions.contiguous(), seeds if streams is None else streams)
        launch(_uniform, (num_rows,), coins, *key, purpose, IS_KEYED=streams is not None, num_warps=1)
    return coins


# What `decodex kernels compile` builds: kernel, argument types in order, constants, warps.
KERNELS = [
    (_gumbel_noise, "*fp32 *i64 *i64 *i64 i32 i32", {"TILE": TILE, "IS_KEYED": True}, 4),
    (_gumbel_noise, "*fp32 *i64 *i64 *i64 i32 i32", {"TILE": TILE, "IS_KEYED": False}, 4),
    (_uniform, "*fp32 *i64 *i64 *i64 i32", {"IS_KEYED": True}, 1),
]
