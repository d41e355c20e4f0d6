"""The order of tokens (logit descending, id ascending) as one integer, masses, and searches for a prefix of the order.

Every truncation keeps a prefix of that order, so a kept set is one number: the smallest key in it, its cut.
"""

from __future__ import annotations

import triton
import triton.language as tl

from decodex.kernels.triton.rng import exp_nonpositive, log_positive

# The state of a row
BAD = tl.constexpr(0)  # NaN, +inf, nothing above -inf, or a temperature that is none
READY = tl.constexpr(1)  # the cut is known
LISTED = tl.constexpr(2)  # to be searched in the chosen blocks
WIDE = tl.constexpr(3)  # to be counted
# Softmax mass
ZERO_MASS = tl.constexpr(-28.0)  # exp(x) * 2^40 < 1 below it
MASS_UNIT = tl.constexpr(1099511627776.0)  # 2^40
LAST_KEY = tl.constexpr(0x7FFFFFFFFFFFFFFF)  # as a cut it keeps nothing


@triton.jit
def order_key(logit, ids):
    """63 bits, unique in a row; a larger key comes first. No NaN."""
    bits = tl.where(logit == 0.0, 0.0, logit).to(tl.int32, bitcast=True)  # -0 is 0
    ascending = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 0x80000000
    return (ascending << 31) | (0x7FFFFFFF - ids).to(tl.int64)


@triton.jit
def kth_key(keys, k):
    """The k-th largest of keys [N] int64 (at least k of them >= 0; negative: absent)."""
    low = tl.min(tl.where(keys >= 0, keys, LAST_KEY))
    high = tl.max(keys) + 1
    count = tl.sum((keys >= 0).to(tl.int32))
    while count > k:
        middle = low + ((high - low) >> 1)
        num = tl.sum((keys >= middle).to(tl.int32))
        is_enough = num >= k
        low = tl.where(is_enough, middle, low)
        count = tl.where(is_enough, num, count)
        high = tl.where(is_enough, high, middle)
    return tl.min(tl.where(keys >= low, keys, LAST_KEY))  # other keys of the row may lie between


@triton.jit
def mass_key(keys, masses, needed):
    """The last key of the shortest prefix of keys [N] whose masses [N] int64 reach `needed` fp64 (negative: absent);
    LAST_KEY without keys."""
    low = tl.min(tl.where(keys >= 0, keys, LAST_KEY))
    high = tl.max(keys) + 1
    count = tl.sum((keys >= 0).to(tl.int32))
    above = tl.zeros_like(count)  # keys >= high
    while count - above > 1:
        middle = low + ((high - low) >> 1)
        is_kept = keys >= middle
        num = tl.sum(is_kept.to(tl.int32))
        is_enough = tl.sum(tl.where(is_kept, masses, 0)).to(tl.float64) >= needed
        low = tl.where(is_enough, middle, low)
        count = tl.where(is_enough, num, count)
        high = tl.where(is_enough, high, middle)
        above = tl.where(is_enough, above, num)
    return tl.min(tl.where(keys >= low, keys, LAST_KEY))  # other keys of the row may lie between


@triton.jit
def lowest_x(min_p):
    return tl.where(min_p > 0, log_positive(tl.maximum(min_p, 1.1754943508222875e-38)), float("-inf"))


@triton.jit
def scale_of(temperature):
    return tl.where(temperature > 0, temperature, 1.0)


@triton.jit
def mass_of(x, is_kept):
    return tl.where(is_kept, (exp_nonpositive(x) * MASS_UNIT).to(tl.int64), 0)
