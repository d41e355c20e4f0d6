"""Rejection and block verification on a GPU, bit-equal to `kernels/reference/verify.py`.

One program per sequence walks its draft; every subtraction of laws and every sum is a loop over the vocabulary. Laws
that were subtracted from are kept as weights beside their factor: law = weights * scale. Barriers stand between passes,
since a thread may read what another one writes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from decodex.kernels.triton.launch import TILE, launch, num_tiles, on_device
from decodex.kernels.triton.rng import log_positive

_CHUNK = 512  # weights of a step of a pass, among 4 warps (1024 spill on sm_80)
_LEAST_WEIGHT = tl.constexpr(1.1754943508222875e-38)  # 2^-126, the smallest normal number
_STEPS = tl.constexpr(1099511627776.0)  # 2^40


@triton.jit
def row_at(address):
    return address.to(tl.pointer_type(tl.float32))


@triton.jit
def log_of(weights):
    is_kept = weights >= _LEAST_WEIGHT
    return tl.where(is_kept, log_positive(tl.where(is_kept, weights, 1.0)), float("-inf"))


@triton.jit
def log_tiles(
    laws,  # [L, V] fp32, row stride `stride`
    out,  # [L, V] fp32, written
    stride,
    V,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * TILE + tl.arange(0, TILE)
    weights = tl.load(laws + row * stride + ids, mask=ids < V, other=0.0)
    tl.store(out + row * V + ids, log_of(weights), mask=ids < V)


@triton.jit
def subtract(
    law,  # address of [V] fp32
    scale,
    other,  # address of [V] fp32, 0: nothing
    other_scale,
    token,  # gets 0; -1: none
    out,  # address of [V] fp32, written; may be one of the others
    V,
    TILE: tl.constexpr,
):
    """What is positive of law * scale - other * other_scale; returns the largest."""
    tl.debug_barrier()
    tops = tl.zeros([TILE], tl.float32)
    end = tl.where(other != 0, V, 0)
    for first in range(0, V, TILE):
        ids = first + tl.arange(0, TILE)
        x = tl.load(row_at(law) + ids, mask=ids < V, other=0.0) * scale
        x = x - tl.load(row_at(other) + ids, mask=ids < end, other=0.0) * other_scale
        x = tl.where((x >= _LEAST_WEIGHT) & (ids != token), x, 0.0)
        tl.store(row_at(out) + ids, x, mask=ids < V)
        tops = tl.maximum(tops, x)
    tl.debug_barrier()
    return tl.max(tops)


@triton.jit
def total_of(weights, top, V, TILE: tl.constexpr):
    """Sum fp64 of weights (address of [V] fp32) whose largest is top > 0, in steps of 2^-40 of a power of two below."""
    unit = ((254 - (top.to(tl.int32, bitcast=True) >> 23)) << 23).to(tl.float32, bitcast=True)
    steps = tl.zeros([TILE], tl.int64)
    for first in range(0, V, TILE):
        ids = first + tl.arange(0, TILE)
        x = tl.load(row_at(weights) + ids, mask=ids < V, other=0.0)
        steps += (x * unit * _STEPS).to(tl.int64)
    return tl.sum(steps).to(tl.float64) / (unit.to(tl.float64) * _STEPS)


@triton.jit
def scale_of(weights, top, V, TILE: tl.constexpr):
    scale = tl.full([], 0.0, tl.float32)
    if top > 0:
        scale = (1.0 / total_of(weights, top, V, TILE)).to(tl.float32)
    return scale


@triton.jit
def next_child(parents, parent, node, num):
    """The first node after `node` with this parent, or num."""
    child = num
    for n in range(node + 1, num):
        child = tl.where((tl.load(parents + n) == parent) & (child == num), n, child)
    return child


@triton.jit
def reject(
    laws,  # address of [K + 1, V] fp32 of the target, in rows of `stride` floats
    stride,
    V,
    num,
    parents,  # [K] int64
    token_ids,  # [K] int64
    draft_laws,  # [K] int64 addresses of fp32 [V], 0: a point mass
    coins,  # [K] fp32
    is_accepted,  # [K] int8, written
    left,  # address of [V] fp32, written
    spare,  # address of [V] fp32, written
    TILE: tl.constexpr,
):
    """Recursive rejection among siblings; returns how many are accepted and where the law after them is."""
    node = tl.full([], -1, tl.int64)
    count = tl.full([], 0, tl.int64)
    law = laws
    is_open = num > 0
    while is_open:
        target = laws + (1 + node) * stride * 4
        law = target
        scale = tl.full([], 1.0, tl.float32)
        child = next_child(parents, node, node, num)
        draft = tl.load(draft_laws + child, mask=child < num, other=0)
        draft_scale = tl.full([], 1.0, tl.float32)
        is_point = draft == 0
        is_refused = child < num
        while is_refused:
            token = tl.load(token_ids + child)
            share = tl.load(row_at(draft) + token, mask=draft != 0, other=1.0) * draft_scale
            likely = tl.load(row_at(law) + token) * scale
            is_refused = ((likely > 0) & (tl.load(coins + child) * share < likely)) == 0
            if is_refused:
                following = next_child(parents, node, child, num)
                top = subtract(law, scale, draft, draft_scale, tl.where(is_point, token, -1), left, V, TILE)
                is_refused = (top > 0) | ((likely > 0) == 0)  # else the same laws up to rounding
                if is_refused:
                    law = tl.where(top > 0, left, target)
                    scale = tl.full([], 1.0, tl.float32)
                    if following < num:
                        if top > 0:
                            scale = scale_of(left, top, V, TILE)
                        if draft != 0:
                            top = subtract(draft, draft_scale, draft * 0, 1.0, token, spare, V, TILE)
                            draft = spare
                            draft_scale = scale_of(spare, top, V, TILE)
                    child = following
                    is_refused = child < num
        is_open = child < num
        if is_open:
            tl.store(is_accepted + child, tl.full([], 1, tl.int8))
            node = child
            count += 1
    return count, law


@triton.jit
def ratio_at(laws, stride, node, token_ids, draft_laws):
    """min(1, r of the node before * p / q)"""
    ratio = tl.full([], 1.0, tl.float32)
    for i in range(node + 1):
        token = tl.load(token_ids + i)
        draft = tl.load(draft_laws + i)
        ratio = ratio * tl.load(row_at(laws + i * stride * 4) + token)
        ratio = tl.div_rn(ratio, tl.load(row_at(draft) + token, mask=draft != 0, other=1.0))
        ratio = tl.where(ratio > 0, tl.where(ratio < 1, ratio, 1.0), 0.0)
    return ratio


@triton.jit
def verify_block(
    laws,  # address of [K + 1, V] fp32 of the target, in rows of `stride` floats
    stride,
    V,
    num,
    token_ids,  # [K] int64
    draft_laws,  # [K] int64 addresses of fp32 [V], 0: a point mass
    coins,  # [K] fp32
    is_accepted,  # [K] int8, written
    left,  # address of [V] fp32, written
    spare,  # address of [V] fp32, written
    TILE: tl.constexpr,
):
    """Block verification of a chain, from its end; returns how many are accepted and where the law after them is."""
    node = num - 1
    law = laws + num * stride * 4
    is_refused = num > 0
    if is_refused:
        is_refused = tl.load(coins + node) >= ratio_at(laws, stride, node, token_ids, draft_laws)
    while is_refused:
        node -= 1
        target = laws + (1 + node) * stride * 4
        ratio = ratio_at(laws, stride, node, token_ids, draft_laws)
        draft = tl.load(draft_laws + node + 1)
        token = tl.where(draft == 0, tl.load(token_ids + node + 1), -1)
        top = subtract(target, ratio, draft, 1.0, token, left, V, TILE)
        law = tl.where(top > 0, left, target)
        is_refused = node >= 0
        if is_refused:
            rest = tl.full([], 0.0, tl.float64)
            if top > 0:
                rest = total_of(left, top, V, TILE)
            elif subtract(target, 1.0, draft * 0, 1.0, -1, spare, V, TILE) == 0:  # no tokens at all
                rest = ratio.to(tl.float64)
            whole = rest + (1.0 - ratio.to(tl.float64))
            chance = tl.where(whole > 0, rest / tl.where(whole > 0, whole, 1.0), 1.0)
            is_refused = tl.load(coins + node).to(tl.float64) >= chance
    for i in range(node + 1):
        tl.store(is_accepted + i, tl.full([], 1, tl.int8))
    return node + 1, law


@triton.jit
def verify_sequences(
    laws,  # [R, V] fp32, row stride `stride`
    starts,  # [B] int64
    cu_nodes,  # [B + 1] int64
    parents,  # [N] int64
    token_ids,  # [N] int64
    draft_laws,  # [N] int64 addresses of fp32 [V], 0: a point mass
    coins,  # [N] fp32
    is_accepted,  # [N] int8, zero, written
    num_accepted,  # [B] int64, written
    log_left,  # [B, V] fp32, written
    spare,  # [B, V] fp32, written
    stride,
    V,
    IS_BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    first = tl.load(cu_nodes + b)
    num = tl.load(cu_nodes + b + 1) - first
    row_laws = (laws + tl.load(starts + b) * stride).to(tl.int64)
    left = (log_left + b * V).to(tl.int64)
    scratch = (spare + b * V).to(tl.int64)
    parents += first
    token_ids += first
    draft_laws += first
    coins += first
    is_accepted += first
    if IS_BLOCK:
        count, law = verify_block(
            row_laws, stride, V, num, token_ids, draft_laws, coins, is_accepted, left, scratch, TILE
        )
    else:
        count, law = reject(
            row_laws, stride, V, num, parents, token_ids, draft_laws, coins, is_accepted, left, scratch, TILE
        )
    tl.store(num_accepted + b, count)
    tl.debug_barrier()
    for begin in range(0, V, TILE):
        ids = begin + tl.arange(0, TILE)
        weights = tl.load(row_at(law) + ids, mask=ids < V, other=0.0)
        tl.store(row_at(left) + ids, log_of(weights), mask=ids < V)


@on_device
def log_law(laws: Tensor) -> Tensor:
    """[L, V] fp32 -> [L, V] fp32."""
    num_rows, vocab_size = laws.shape
    out = torch.empty(num_rows, vocab_size, device=laws.device)
    if num_rows:
        launch(log_tiles, (num_rows, num_tiles(vocab_size)), laws, out, laws.stride(0), vocab_size, TILE=TILE)
    return out


@on_device
def verify_drafts(
    laws: Tensor, facts: tuple[Tensor, ...], coins: Tensor, is_block: bool, verdicts: tuple[Tensor, ...]
) -> None:
    """See kernels/verify.py; facts: starts, cu_nodes, parents, token_ids, addresses of draft laws; fills verdicts."""
    is_accepted, num_accepted, log_left = verdicts
    num_seqs, vocab_size = log_left.shape
    if num_seqs:
        launch(
            verify_sequences,
            (num_seqs,),
            *(laws, *facts, coins, is_accepted.view(torch.int8), num_accepted, log_left),
            *(torch.empty_like(log_left), laws.stride(0), vocab_size),
            IS_BLOCK=is_block,
            TILE=_CHUNK,
        )


_TYPES = "*fp32 *i64 *i64 *i64 *i64 *i64 *fp32 *i8 *i64 *fp32 *fp32 i32 i32"
KERNELS = [
    (log_tiles, "*fp32 *fp32 i32 i32", {"TILE": TILE}, 4),
    (verify_sequences, _TYPES, {"IS_BLOCK": False, "TILE": _CHUNK}, 4),
    (verify_sequences, _TYPES, {"IS_BLOCK": True, "TILE": _CHUNK}, 4),
]
