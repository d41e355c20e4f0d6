"""The cuts that the best blocks do not settle: flat nuclei and large top_k.

Tokens are counted, or their masses added, in 2,048 buckets of the logit's distance from the maximum; the ids of the
buckets in which the sums cross are listed; a cut is searched among those token by token. Buckets only narrow the
search, so their width decides nothing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from decodex.kernels.triton.launch import BLOCK, TILE, launch, num_tiles
from decodex.kernels.triton.order import LAST_KEY, READY, WIDE, ZERO_MASS, lowest_x, mass_of, order_key, scale_of

NUM_BUCKETS = 2048
LIST = 4096  # tokens of the crossing buckets that are searched from a list; more are searched in the whole row


@triton.jit
def bucket_of(v, best, per_logit, NUM_BUCKETS: tl.constexpr):
    place = tl.minimum((best - v) * per_logit, NUM_BUCKETS - 1.0)
    return tl.where(per_logit > 0, place, 0.0).to(tl.int32)


@triton.jit
def count_buckets(
    logits,  # [L, V] fp32, row stride `stride`
    block_max,  # [L, NB] fp32
    temperature,  # [L] fp32
    top_k,  # [L] int32
    top_p,  # [L] fp32
    min_p,  # [L] fp32
    top,  # [L] fp32
    state,  # [L] int32
    buckets_per_logit,  # [L] fp32
    bucket_counts,  # [L, NUM_BUCKETS] int32, added to where top_k is on
    bucket_masses,  # [L, NUM_BUCKETS] int64, added to where top_p is on
    stride,
    V,
    NB,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    NUM_BUCKETS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    if tl.load(state + row) == WIDE:
        k = tl.load(top_k + row)
        is_k = (k > 0) & (k < V)
        best = tl.load(top + row)
        scale = scale_of(tl.load(temperature + row))
        lowest = lowest_x(tl.load(min_p + row))
        if is_k == 0:
            lowest = tl.maximum(lowest, ZERO_MASS)
        blocks = tile * (TILE // BLOCK) + tl.arange(0, TILE // BLOCK)
        maxima = tl.load(block_max + row * NB + blocks, mask=blocks < NB, other=float("-inf"))
        if tl.div_rn(tl.max(maxima) - best, scale) >= lowest:
            ids = tile * TILE + tl.arange(0, TILE)
            v = tl.load(logits + row * stride + ids, mask=ids < V, other=float("-inf"))
            x = tl.div_rn(v - best, scale)
            is_kept = (x >= lowest) & (x > float("-inf"))
            bucket = bucket_of(tl.where(is_kept, v, best), best, tl.load(buckets_per_logit + row), NUM_BUCKETS)
            place = row * NUM_BUCKETS + bucket
            if is_k:
                tl.atomic_add(bucket_counts + place, tl.full([TILE], 1, tl.int32), mask=is_kept, sem="relaxed")
            if tl.load(top_p + row) < 1:
                mass = mass_of(x, is_kept)
                tl.atomic_add(bucket_masses + place, mass, mask=mass > 0, sem="relaxed")


@triton.jit
def locate(counts, masses, k, is_k, p, NUM_BUCKETS: tl.constexpr):
    """Buckets in which the sums cross: the k-th token's (NUM_BUCKETS: all are kept), the nucleus's first and last
    possible one; tokens and mass before the k-th token's bucket."""
    buckets = tl.arange(0, NUM_BUCKETS)
    bucket_k = tl.where(is_k, tl.sum((tl.cumsum(counts) < k).to(tl.int32)), NUM_BUCKETS)
    tokens_before = tl.sum(tl.where(buckets < bucket_k, counts, 0))
    mass_before = tl.sum(tl.where(buckets < bucket_k, masses, 0))
    mass_with = tl.sum(tl.where(buckets <= bucket_k, masses, 0))
    sums = tl.cumsum(masses).to(tl.float64)
    first = tl.sum((sums < p.to(tl.float64) * mass_before.to(tl.float64)).to(tl.int32))
    last = tl.sum((sums < p.to(tl.float64) * mass_with.to(tl.float64)).to(tl.int32))
    is_p = p < 1
    first = tl.where(is_p, tl.minimum(first, bucket_k), bucket_k)
    last = tl.where(is_p, tl.minimum(last, bucket_k), bucket_k)
    return bucket_k, first, last, tokens_before, mass_before


@triton.jit
def list_crossings(
    logits,  # [L, V] fp32, row stride `stride`
    block_max,  # [L, NB] fp32
    temperature,  # [L] fp32
    top_k,  # [L] int32
    top_p,  # [L] fp32
    min_p,  # [L] fp32
    top,  # [L] fp32
    state,  # [L] int32
    buckets_per_logit,  # [L] fp32
    bucket_counts,  # [L, NUM_BUCKETS] int32
    bucket_masses,  # [L, NUM_BUCKETS] int64
    listed,  # [L, LIST] int32, written: ids of the crossing buckets, in any order
    list_sizes,  # [L] int32, added to
    stride,
    V,
    NB,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    NUM_BUCKETS: tl.constexpr,
    LIST: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    if tl.load(state + row) == WIDE:
        k = tl.load(top_k + row)
        best = tl.load(top + row)
        per_logit = tl.load(buckets_per_logit + row)
        buckets = row * NUM_BUCKETS + tl.arange(0, NUM_BUCKETS)
        bucket_k, first, last, _, _ = locate(
            tl.load(bucket_counts + buckets),
            tl.load(bucket_masses + buckets),
            k,
            (k > 0) & (k < V),
            tl.load(top_p + row),
            NUM_BUCKETS,
        )
        blocks = tile * (TILE // BLOCK) + tl.arange(0, TILE // BLOCK)
        maxima = tl.load(block_max + row * NB + blocks, mask=blocks < NB, other=float("-inf"))
        if bucket_of(tl.max(maxima), best, per_logit, NUM_BUCKETS) <= tl.maximum(bucket_k, last):
            ids = tile * TILE + tl.arange(0, TILE)
            v = tl.load(logits + row * stride + ids, mask=ids < V, other=float("-inf"))
            x = tl.div_rn(v - best, scale_of(tl.load(temperature + row)))
            is_kept = (x >= lowest_x(tl.load(min_p + row))) & (x > float("-inf"))
            bucket = bucket_of(tl.where(is_kept, v, best), best, per_logit, NUM_BUCKETS)
            is_kept = is_kept & ((bucket == bucket_k) | ((bucket >= first) & (bucket <= last)))
            num = tl.sum(is_kept.to(tl.int32))
            if num > 0:
                place = tl.atomic_add(list_sizes + row, num, sem="relaxed") + tl.cumsum(is_kept.to(tl.int32)) - 1
                tl.store(listed + row * LIST + place, ids, mask=is_kept & (place < LIST))


@triton.jit
def chunk_of_bucket(
    source,  # [V] fp32: the row's logits
    ids,  # [LIST] int32, or V and beyond where absent
    V,
    best,
    scale,
    lowest,
    per_logit,
    bucket,
    least_key,
    NUM_BUCKETS: tl.constexpr,
):
    """Keys (-1: not in the bucket, cut off, or before least_key) and masses of some tokens."""
    v = tl.load(source + ids, mask=ids < V, other=float("-inf"))
    x = tl.div_rn(v - best, scale)
    is_kept = (x >= lowest) & (x > float("-inf"))
    safe = tl.where(is_kept, v, best)
    is_kept = is_kept & (bucket_of(safe, best, per_logit, NUM_BUCKETS) == bucket)
    keys = tl.where(is_kept, order_key(safe, ids), -1)
    keys = tl.where(keys >= least_key, keys, -1)
    return keys, mass_of(x, keys >= 0)


@triton.jit
def search_bucket(
    source,  # [V] fp32: the row's logits
    listed,  # [LIST] int32: ids
    num,  # of listed ids; more than LIST: the row is searched
    V,
    best,
    scale,
    lowest,
    per_logit,
    bucket,
    least_key,
    num_wanted,  # tokens of the bucket, or 0: mass decides
    mass_before,
    needed,  # fp64
    LIST: tl.constexpr,
    NUM_BUCKETS: tl.constexpr,
):
    """The cut within one bucket: of its num_wanted first tokens, or of the fewest that bring mass_before to `needed`;
    LAST_KEY in a bucket without tokens. Also the mass of the bucket's tokens from the cut on."""
    lanes = tl.arange(0, LIST)
    is_list = num <= LIST
    end = tl.where(is_list, num, V)
    low = tl.full([], LAST_KEY, tl.int64)
    high = tl.full([], 0, tl.int64)
    low_count = tl.full([], 0, tl.int32)
    low_mass = tl.full([], 0, tl.int64)
    for begin in range(0, end, LIST):
        ids = begin + lanes
        ids = tl.where(ids < end, ids, V)
        if is_list:
            ids = tl.load(listed + ids, mask=ids < end, other=V)
        keys, mass = chunk_of_bucket(source, ids, V, best, scale, lowest, per_logit, bucket, least_key, NUM_BUCKETS)
        low = tl.minimum(low, tl.min(tl.where(keys >= 0, keys, LAST_KEY)))
        high = tl.maximum(high, tl.max(keys) + 1)
        low_count += tl.sum((keys >= 0).to(tl.int32))
        low_mass += tl.sum(mass)
    high_count = tl.full([], 0, tl.int32)
    while low_count - high_count > 1:
        middle = low + ((high - low) >> 1)
        count = tl.full([], 0, tl.int32)
        total = tl.full([], 0, tl.int64)
        for begin in range(0, end, LIST):
            ids = begin + lanes
            ids = tl.where(ids < end, ids, V)
            if is_list:
                ids = tl.load(listed + ids, mask=ids < end, other=V)
            keys, mass = chunk_of_bucket(
                source, ids, V, best, scale, lowest, per_logit, bucket, tl.maximum(least_key, middle), NUM_BUCKETS
            )
            count += tl.sum((keys >= 0).to(tl.int32))
            total += tl.sum(mass)
        is_enough = tl.where(num_wanted > 0, count >= num_wanted, (mass_before + total).to(tl.float64) >= needed)
        low = tl.where(is_enough, middle, low)
        low_count = tl.where(is_enough, count, low_count)
        low_mass = tl.where(is_enough, total, low_mass)
        high = tl.where(is_enough, high, middle)
        high_count = tl.where(is_enough, high_count, count)
    return low, low_mass


@triton.jit
def cut_wide(
    logits,  # [L, V] fp32, row stride `stride`
    temperature,  # [L] fp32
    top_k,  # [L] int32
    top_p,  # [L] fp32
    min_p,  # [L] fp32
    top,  # [L] fp32
    state,  # [L] int32, updated: WIDE to READY
    buckets_per_logit,  # [L] fp32
    bucket_counts,  # [L, NUM_BUCKETS] int32
    bucket_masses,  # [L, NUM_BUCKETS] int64
    listed,  # [L, LIST] int32
    list_sizes,  # [L] int32
    cut,  # [L] int64, written
    stride,
    V,
    NUM_BUCKETS: tl.constexpr,
    LIST: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    if tl.load(state + row) == WIDE:
        k = tl.load(top_k + row)
        p = tl.load(top_p + row)
        best = tl.load(top + row)
        scale = scale_of(tl.load(temperature + row))
        lowest = lowest_x(tl.load(min_p + row))
        per_logit = tl.load(buckets_per_logit + row)
        num = tl.load(list_sizes + row)
        lanes = tl.arange(0, NUM_BUCKETS)
        masses = tl.load(bucket_masses + row * NUM_BUCKETS + lanes)
        bucket_k, _, _, tokens_before, total = locate(
            tl.load(bucket_counts + row * NUM_BUCKETS + lanes), masses, k, (k > 0) & (k < V), p, NUM_BUCKETS
        )
        found = tl.full([], 0, tl.int64)
        stage = tl.where(bucket_k < NUM_BUCKETS, 0, 1)
        last_stage = tl.where(p < 1, 2, 1)
        while stage < last_stage:  # 0: the k-th token, 1: the nucleus; one copy of the search
            needed = p.to(tl.float64) * total.to(tl.float64)
            sums = tl.cumsum(masses).to(tl.float64)
            bucket_p = tl.minimum(tl.sum((sums < needed).to(tl.int32)), tl.minimum(bucket_k, NUM_BUCKETS - 1))
            bucket = tl.where(stage == 0, bucket_k, bucket_p)
            found, mass = search_bucket(
                logits + row * stride,
                listed + row * LIST,
                num,
                V,
                best,
                scale,
                lowest,
                per_logit,
                bucket,
                found,
                tl.where(stage == 0, k - tokens_before, 0),
                tl.sum(tl.where(lanes < bucket, masses, 0)),
                needed,
                LIST,
                NUM_BUCKETS,
            )
            total += tl.where(stage == 0, mass, 0)
            stage += 1
        tl.store(cut + row, found)
        tl.store(state + row, READY)


def cut_by_buckets(
    logits: Tensor, block_max: Tensor, row_facts: tuple[Tensor, ...], list_sizes: Tensor, cut: Tensor
) -> None:
    """Cuts of the rows of logits [L, V] whose state is WIDE; row_facts: from temperature to bucket_masses."""
    num_rows, vocab_size = logits.shape
    grid, sizes = (num_rows, num_tiles(vocab_size)), (logits.stride(0), vocab_size, block_max.shape[1])
    listed = torch.empty(num_rows, LIST, dtype=torch.int32, device=logits.device)
    launch(count_buckets, grid, logits, block_max, *row_facts, *sizes, **_TILES)
    launch(list_crossings, grid, logits, block_max, *row_facts, listed, list_sizes, *sizes, LIST=LIST, **_TILES)
    arguments = (*row_facts, listed, list_sizes, cut, *sizes[:2])
    launch(cut_wide, grid[:1], logits, *arguments, NUM_BUCKETS=NUM_BUCKETS, LIST=LIST, num_warps=16)


_TILES = {"TILE": TILE, "BLOCK": BLOCK, "NUM_BUCKETS": NUM_BUCKETS}
_ROW_FACTS = "*fp32 *i32 *fp32 *fp32 *fp32 *i32 *fp32 *i32 *i64"
KERNELS = [
    (count_buckets, f"*fp32 *fp32 {_ROW_FACTS} i32 i32 i32", _TILES, 4),
    (
        list_crossings,
        f"*fp32 *fp32 {_ROW_FACTS} *i32 *i32 i32 i32 i32",
        {**_TILES, "LIST": LIST},
        4,
    ),
    (cut_wide, f"*fp32 {_ROW_FACTS} *i32 *i32 *i64 i32 i32", {"NUM_BUCKETS": NUM_BUCKETS, "LIST": LIST}, 16),
]
