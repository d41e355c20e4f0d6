"""Counter-based noise in plain torch: the oracle of `kernels/rng.py`, bit-equal to the C++ body.

Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) on int64 tensors that hold
uint32 values; exp and log are polynomials of plain multiplies and adds, so every backend can repeat the bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LN2_HIGH = 0.693359375  # 10 bits: its product with an exponent is exact
_LN2_LOW = -2.12194440e-4
_LOG2_E = 1.44269504088896341
# log(1 + f) = f - f^2/2 + f^3 * P(f) on [sqrt(1/2) - 1, sqrt(2) - 1], minimax, relative error 6e-9 before rounding
LOG_COEFFICIENTS = (
    0.3333333134651184,
    -0.250008225440979,
    0.20001232624053955,
    -0.16623297333717346,
    0.14201557636260986,
    -0.13160595297813416,
    0.1276330053806305,
    -0.07635588198900223,
)
# exp(r) = 1 + r + r^2 * Q(r) on [-ln(2)/2, ln(2)/2], minimax, relative error 3e-9 before rounding
EXP_COEFFICIENTS = (
    0.4999999403953552,
    0.1666651964187622,
    0.04166840761899948,
    0.008368914015591145,
    0.001381418900564313,
)
EXP_LOWEST = -87.0  # below it exp_nonpositive is 0


def philox_4x32(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Ten rounds; every tensor int64 holding uint32 values, broadcast together; returns four words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]  # int64 wraps: the 64 bits are right
        high0, high1 = (product0 >> 32) & _MASK, (product1 >> 32) & _MASK
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, product1 & _MASK, high0 ^ c3 ^ k1, product0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def log_positive(x: Tensor) -> Tensor:
    """Natural logarithm of normal positive fp32, within 2 ulp."""
    bits = x.view(torch.int32)
    exponent = (bits - 0x3F3504F3) >> 23  # mantissa in [sqrt(1/2), sqrt(2))
    f = (bits - (exponent << 23)).view(torch.float32) - 1.0
    e = exponent.to(torch.float32)
    square = f * f
    p = torch.full_like(f, LOG_COEFFICIENTS[-1])
    for c in reversed(LOG_COEFFICIENTS[:-1]):
        p = p * f + c
    y = (square * f) * p
    y = y - square * 0.5
    y = y + e * _LN2_LOW
    y = f + y
    return y + e * _LN2_HIGH


def exp_nonpositive(x: Tensor) -> Tensor:
    """e^x of fp32 x <= 0, within 2 ulp; exactly 1 at 0, exactly 0 below -87."""
    clamped = torch.where(x > EXP_LOWEST, x, EXP_LOWEST)
    n = (clamped * _LOG2_E - 0.5).to(torch.int32)  # truncation: round to nearest for x <= 0
    e = n.to(torch.float32)
    r = clamped - e * _LN2_HIGH
    r = r - e * _LN2_LOW
    p = torch.full_like(r, EXP_COEFFICIENTS[-1])
    for c in reversed(EXP_COEFFICIENTS[:-1]):
        p = p * r + c
    y = ((r * r) * p + r) + 1.0
    y = y * ((n + 127) << 23).view(torch.float32)
    return torch.where(x > EXP_LOWEST, y, 0.0)


def gumbel_from_words(words: Tensor) -> Tensor:
    """-log(-log(u)) with u = ((x >> 9) + 0.5) * 2^-23 of uint32 values x held in int64; finite for every word."""
    u = ((words >> 9).to(torch.float32) + 0.5) * 2.0**-23
    return -log_positive(-log_positive(u))


def stream_words(positions: Tensor, purpose: int, streams: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The counter words [L] beside the call's number: position, purpose | sibling << 8, window."""
    if streams is None:
        zero = torch.zeros_like(positions)
        return positions & _MASK, zero + purpose, zero
    return positions & _MASK, purpose + (streams >> 32 << 8), streams & _MASK


def gumbel_noise(
    seeds: Tensor, positions: Tensor, vocab_size: int, purpose: int, streams: Tensor | None = None
) -> Tensor:
    """[L] int64 seeds, positions and streams (window | sibling << 32) -> [L, V] fp32."""
    calls = torch.arange((vocab_size + 3) // 4, dtype=torch.int64, device=seeds.device)
    position, use, window = stream_words(positions, purpose, streams)
    counter = (calls[None, :], position[:, None], use[:, None], window[:, None])
    key = ((seeds & _MASK)[:, None], ((seeds >> 32) & _MASK)[:, None])
    words = torch.stack(philox_4x32(counter, key), dim=-1)  # [L, V/4, 4]
    return gumbel_from_words(words.flatten(1)[:, :vocab_size])


def uniform(seeds: Tensor, positions: Tensor, purpose: int, streams: Tensor | None = None) -> Tensor:
    """One number in (0, 1) of each row, [L] fp32, with 23 bits: the first word of its stream."""
    counter = (torch.zeros_like(positions), *stream_words(positions, purpose, streams))
    word = philox_4x32(counter, (seeds & _MASK, (seeds >> 32) & _MASK))[0]
    return ((word >> 9).to(torch.float32) + 0.5) * 2.0**-23
