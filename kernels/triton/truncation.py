"""The cut of every row (min_p, top_k, top_p) without a sort: which kernels run, in order, is at the end of the file.

A row's block maxima (64 logits each) are read once. The k-th token is in the k blocks with the largest maxima, so
top_k up to 128 and peaked nuclei are settled on those blocks; a nucleus needs its total mass first (a second read,
of tiles that have any). What is not settled there is counted in `buckets.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from decodex.kernels.sampling_rows import SamplingRows
from decodex.kernels.triton.buckets import NUM_BUCKETS, cut_by_buckets
from decodex.kernels.triton.launch import BLOCK, TILE, launch, num_tiles, power_of_two
from decodex.kernels.triton.order import (
    BAD,
    LAST_KEY,
    LISTED,
    READY,
    WIDE,
    ZERO_MASS,
    kth_key,
    lowest_x,
    mass_key,
    mass_of,
    order_key,
    scale_of,
)

MAX_BLOCKS = 128  # looked into for top_k or a nucleus before anything is counted


class Cuts(NamedTuple):
    """What the truncation of L rows leaves: tokens with order_key >= cut whose x >= log(min_p) and x > -inf."""

    block_max: Tensor  # [L, NB] fp32
    top: Tensor  # [L] fp32
    best_ids: Tensor  # [L] int64, the arg-max
    state: Tensor  # [L] int32: BAD or READY
    cut: Tensor  # [L] int64


@triton.jit
def block_maxima(
    logits,  # [L, V] fp32, row stride `stride`
    block_max,  # [L, NB] fp32, written; +inf for a block with NaN
    tile_min,  # [L, tiles] fp32, written: smallest finite logit
    stride,
    V,
    NB,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    ids = tile * TILE + tl.arange(0, TILE)
    v = tl.load(logits + row * stride + ids, mask=ids < V, other=float("-inf"))
    v = tl.where(v < float("inf"), v, float("inf"))
    maxima = tl.max(tl.reshape(v, [TILE // BLOCK, BLOCK]), axis=1)
    blocks = tile * (TILE // BLOCK) + tl.arange(0, TILE // BLOCK)
    tl.store(block_max + row * NB + blocks, maxima, mask=blocks < NB)
    least = tl.min(tl.where(v > float("-inf"), v, float("inf")))
    tl.store(tile_min + row * tl.num_programs(1) + tile, least)


@triton.jit
def choose_blocks(
    logits,  # [L, V] fp32, row stride `stride`
    block_max,  # [L, NB] fp32
    tile_min,  # [L, T] fp32
    temperature,  # [L] fp32
    top_k,  # [L] int32
    top_p,  # [L] fp32
    top,  # [L] fp32, written
    best_ids,  # [L] int64, written
    state,  # [L] int32, written
    cut,  # [L] int64, written where state is READY
    chosen,  # [L, MAX_BLOCKS] int32, written: block ids, ascending
    num_chosen,  # [L] int32, written
    buckets_per_logit,  # [L] fp32, written
    bucket_counts,  # [L, NUM_BUCKETS] int32, cleared where it may be needed
    bucket_masses,  # [L, NUM_BUCKETS] int64, cleared where it may be needed
    list_sizes,  # [L] int32, cleared
    stride,
    V,
    NB,
    T,
    NB_POWER: tl.constexpr,
    T_POWER: tl.constexpr,
    BLOCK: tl.constexpr,
    MAX_BLOCKS: tl.constexpr,
    NUM_BUCKETS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    blocks = tl.arange(0, NB_POWER)
    maxima = tl.load(block_max + row * NB + blocks, mask=blocks < NB, other=float("-inf"))
    best = tl.max(maxima)
    first = tl.min(tl.where(maxima == best, blocks, NB - 1))
    ids = first * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(logits + row * stride + ids, mask=ids < V, other=float("-inf"))
    best_id = tl.min(tl.where(v == best, ids, V - 1))
    tl.store(top + row, best)
    tl.store(best_ids + row, best_id.to(tl.int64))
    tl.store(num_chosen + row, 0)
    tl.store(list_sizes + row, 0)

    t = tl.load(temperature + row)
    k = tl.load(top_k + row)
    is_k = (k > 0) & (k < V)
    is_p = tl.load(top_p + row) < 1
    is_bad = (best == float("inf")) | (best == float("-inf")) | ((t >= 0) == 0)
    if is_bad:
        tl.store(state + row, BAD)
    elif t == 0:
        tl.store(state + row, READY)
        tl.store(cut + row, order_key(best, best_id))
    elif (is_k | is_p) == 0:
        tl.store(state + row, READY)
        tl.store(cut + row, tl.zeros_like(row))
    else:
        least = tl.arange(0, T_POWER)
        least = tl.min(tl.load(tile_min + row * T + least, mask=least < T, other=float("inf")))
        span = best - least
        span = tl.where(is_k, span, tl.minimum(span, t * -ZERO_MASS))
        is_span = (span > 0) & (span < float("inf"))
        tl.store(buckets_per_logit + row, tl.where(is_span, NUM_BUCKETS / tl.where(is_span, span, 1.0), 0.0))
        buckets = tl.arange(0, NUM_BUCKETS)
        tl.store(bucket_counts + row * NUM_BUCKETS + buckets, tl.zeros([NUM_BUCKETS], tl.int32))
        tl.store(bucket_masses + row * NUM_BUCKETS + buckets, tl.zeros([NUM_BUCKETS], tl.int64))
        num = tl.where(is_k, k, MAX_BLOCKS)
        if (num <= MAX_BLOCKS) | (NB <= MAX_BLOCKS):
            keys = tl.where(blocks < NB, order_key(maxima, blocks), -1)
            least_key = kth_key(keys, tl.minimum(num, NB))
            is_chosen = keys >= least_key
            place = tl.cumsum(is_chosen.to(tl.int32)) - 1
            tl.store(chosen + row * MAX_BLOCKS + place, blocks, mask=is_chosen & (place < MAX_BLOCKS))
            tl.store(num_chosen + row, tl.minimum(num, NB))
            tl.store(state + row, LISTED)
        else:
            tl.store(state + row, WIDE)


@triton.jit
def tile_masses(
    logits,  # [L, V] fp32, row stride `stride`
    block_max,  # [L, NB] fp32
    top,  # [L] fp32
    state,  # [L] int32
    temperature,  # [L] fp32
    top_k,  # [L] int32
    min_p,  # [L] fp32
    top_p,  # [L] fp32
    masses,  # [L, T] int64, written for rows that need them (EVERY_ROW: for all but bad ones)
    stride,
    V,
    NB,
    EVERY_ROW: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    if EVERY_ROW:
        is_needed = tl.load(state + row) != BAD
        scale = tl.full([], 1.0, tl.float32)
        lowest = tl.full([], float("-inf"), tl.float32)
    else:
        k = tl.load(top_k + row)
        is_k = (k > 0) & (k < V)
        is_needed = (tl.load(state + row) == LISTED) & (is_k == 0) & (tl.load(top_p + row) < 1)
        scale = scale_of(tl.load(temperature + row))
        lowest = lowest_x(tl.load(min_p + row))
    if is_needed:
        best = tl.load(top + row)
        blocks = tile * (TILE // BLOCK) + tl.arange(0, TILE // BLOCK)
        maxima = tl.load(block_max + row * NB + blocks, mask=blocks < NB, other=float("-inf"))
        lowest = tl.maximum(lowest, ZERO_MASS)
        total = tl.zeros_like(row)
        if tl.div_rn(tl.max(maxima) - best, scale) >= lowest:
            ids = tile * TILE + tl.arange(0, TILE)
            v = tl.load(logits + row * stride + ids, mask=ids < V, other=float("-inf"))
            x = tl.div_rn(v - best, scale)
            total = tl.sum(mass_of(x, x >= lowest))
        tl.store(masses + row * tl.num_programs(1) + tile, total)


@triton.jit
def cut_listed(
    logits,  # [L, V] fp32, row stride `stride`
    temperature,  # [L] fp32
    top_k,  # [L] int32
    top_p,  # [L] fp32
    min_p,  # [L] fp32
    top,  # [L] fp32
    masses,  # [L, T] int64
    chosen,  # [L, MAX_BLOCKS] int32
    num_chosen,  # [L] int32
    state,  # [L] int32, updated: LISTED to READY or WIDE
    cut,  # [L] int64, written where READY
    stride,
    V,
    NB,
    T,
    T_POWER: tl.constexpr,
    BLOCK: tl.constexpr,
    MAX_BLOCKS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    if tl.load(state + row) == LISTED:
        num = tl.load(num_chosen + row)
        lanes = tl.arange(0, MAX_BLOCKS * BLOCK)
        block = tl.load(chosen + row * MAX_BLOCKS + lanes // BLOCK, mask=lanes // BLOCK < num, other=NB)
        ids = block * BLOCK + lanes % BLOCK
        v = tl.load(logits + row * stride + ids, mask=ids < V, other=float("-inf"))
        keys = tl.where(ids < V, order_key(v, ids), -1)
        k = tl.load(top_k + row)
        is_k = (k > 0) & (k < V)
        p = tl.load(top_p + row)
        found = tl.zeros_like(row)
        if is_k:
            found = kth_key(keys, k)
        is_found = True
        if p < 1:
            x = tl.div_rn(v - tl.load(top + row), scale_of(tl.load(temperature + row)))
            is_kept = (keys >= found) & (x >= lowest_x(tl.load(min_p + row))) & (x > float("-inf"))
            if is_k:
                mass = mass_of(x, is_kept)
                total = tl.sum(mass)
            else:
                tiles = tl.arange(0, T_POWER)
                total = tl.sum(tl.load(masses + row * T + tiles, mask=tiles < T, other=0))
                if num < NB:  # a prefix of the order only down to the least of the chosen maxima
                    largest = tl.max(tl.reshape(keys, [MAX_BLOCKS, BLOCK]), axis=1)
                    is_kept = is_kept & (keys >= tl.min(tl.where(largest >= 0, largest, LAST_KEY)))
                mass = mass_of(x, is_kept)
            needed = p.to(tl.float64) * total.to(tl.float64)
            is_found = tl.sum(mass).to(tl.float64) >= needed
            if is_found:
                found = mass_key(tl.where(is_kept, keys, -1), mass, needed)
        if is_found:
            tl.store(cut + row, found)
        tl.store(state + row, tl.where(is_found, READY, WIDE))


def find_cuts(logits: Tensor, rows: SamplingRows, is_few: bool = False) -> Cuts:
    """The common truncations of logits [L, V] fp32 (column stride 1), L >= 1, as cuts; nothing is read back.

    is_few: the caller knows that every row has 1 <= top_k <= MAX_BLOCKS and no top_p (or needs no cut at all)."""
    num_rows, vocab_size = logits.shape
    temperature, top_k, top_p, min_p = (
        tensor.contiguous() for tensor in (rows.temperature, rows.top_k, rows.top_p, rows.min_p)
    )
    stride, num_blocks, tiles = logits.stride(0), -(-vocab_size // BLOCK), num_tiles(vocab_size)
    grid, tile_power = (num_rows, tiles), power_of_two(tiles)
    tile_sizes = {"TILE": TILE, "BLOCK": BLOCK}

    def empty(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(num_rows, *shape, dtype=dtype, device=logits.device)

    block_max, tile_min = empty(torch.float32, num_blocks), empty(torch.float32, tiles)
    top, best_ids, state = empty(torch.float32), empty(torch.int64), empty(torch.int32)
    cut, masses = empty(torch.int64), empty(torch.int64, tiles)
    chosen, num_chosen = empty(torch.int32, MAX_BLOCKS), empty(torch.int32)
    per_logit, list_sizes = empty(torch.float32), empty(torch.int32)
    counts, bucket_masses = empty(torch.int32, NUM_BUCKETS), empty(torch.int64, NUM_BUCKETS)
    launch(block_maxima, grid, logits, block_max, tile_min, stride, vocab_size, num_blocks, **tile_sizes)
    launch(
        choose_blocks,
        (num_rows,),
        *(logits, block_max, tile_min, temperature, top_k, top_p, top, best_ids, state, cut, chosen, num_chosen),
        *(per_logit, counts, bucket_masses, list_sizes, stride, vocab_size, num_blocks, tiles),
        NB_POWER=power_of_two(num_blocks),
        T_POWER=tile_power,
        BLOCK=BLOCK,
        MAX_BLOCKS=MAX_BLOCKS,
        NUM_BUCKETS=NUM_BUCKETS,
        num_warps=8,
    )
    if not is_few:
        launch(
            tile_masses,
            grid,
            *(logits, block_max, top, state, temperature, top_k, min_p, top_p, masses, stride, vocab_size, num_blocks),
            EVERY_ROW=False,
            **tile_sizes,
        )
    launch(
        cut_listed,
        (num_rows,),
        *(logits, temperature, top_k, top_p, min_p, top, masses, chosen, num_chosen, state, cut),
        *(stride, vocab_size, num_blocks, tiles),
        T_POWER=tile_power,
        BLOCK=BLOCK,
        MAX_BLOCKS=MAX_BLOCKS,
        num_warps=16,
    )
    if num_blocks > MAX_BLOCKS and not is_few:  # else no row is WIDE
        row_facts = (temperature, top_k, top_p, min_p, top, state, per_logit, counts, bucket_masses)
        cut_by_buckets(logits, block_max, row_facts, list_sizes, cut)
    return Cuts(block_max, top, best_ids, state, cut)


_TILES = {"TILE": TILE, "BLOCK": BLOCK}
_AT_152K = {"NB_POWER": 4096, "T_POWER": 128}  # V up to 262,144
KERNELS = [
    (block_maxima, "*fp32 *fp32 *fp32 i32 i32 i32", _TILES, 4),
    (
        choose_blocks,
        "*fp32 *fp32 *fp32 *fp32 *i32 *fp32 *fp32 *i64 *i32 *i64 *i32 *i32 *fp32 *i32 *i64 *i32 i32 i32 i32 i32",
        {**_AT_152K, "BLOCK": BLOCK, "MAX_BLOCKS": MAX_BLOCKS, "NUM_BUCKETS": NUM_BUCKETS},
        8,
    ),
    *(
        (
            tile_masses,
            "*fp32 *fp32 *fp32 *i32 *fp32 *i32 *fp32 *fp32 *i64 i32 i32 i32",
            {"EVERY_ROW": every, **_TILES},
            4,
        )
        for every in (False, True)
    ),
    (
        cut_listed,
        "*fp32 *fp32 *i32 *fp32 *fp32 *fp32 *i64 *i32 *i32 *i32 *i64 i32 i32 i32 i32",
        {"T_POWER": 128, "BLOCK": BLOCK, "MAX_BLOCKS": MAX_BLOCKS},
        16,
    ),
]
