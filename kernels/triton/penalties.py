"""Sparse changes of logits rows on a GPU. Programs split the entries of all lists evenly; each entry finds its row by
halving cu, so that one long list costs no more than many short ones. Lists are trusted: to look for a wrong one would
be to wait for the device, so ids outside the vocabulary are passed over."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from decodex.kernels.triton.launch import TILE, launch, num_tiles, on_device

ENTRIES = 512  # of one program


@triton.jit
def list_of(
    cu,  # [R + 1] int32
    R,
    entry,
):
    """The list that each entry is in: the largest l < R with cu[l] <= entry."""
    low = tl.zeros_like(entry)
    high = low + R
    while tl.max(high - low) > 1:
        middle = (low + high) // 2
        is_before = tl.load(cu + middle) <= entry
        low = tl.where(is_before, middle, low)
        high = tl.where(is_before, high, tl.maximum(middle, low + 1))
    return low


@triton.jit
def penalize(
    logits,  # [L, V] fp32, row stride `stride`, changed
    cu,  # [L + 1] int32
    token_ids,  # [N] int32
    output_counts,  # [N] int32
    repetition,  # [L] fp32
    frequency,  # [L] fp32
    presence,  # [L] fp32
    stride,
    L,
    V,
    N,
    ENTRIES: tl.constexpr,
):
    entry = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    row = list_of(cu, L, entry)
    token = tl.load(token_ids + entry, mask=entry < N, other=-1)
    is_listed = (token >= 0) & (token < V)
    place = logits + row.to(tl.int64) * stride + token
    logit = tl.load(place, mask=is_listed, other=0.0)
    factor = tl.load(repetition + row)
    logit = tl.where(logit > 0, tl.div_rn(logit, factor), logit * factor)
    count = tl.load(output_counts + entry, mask=is_listed, other=0)
    logit = logit - tl.load(frequency + row) * count.to(tl.float32)
    logit = logit - tl.load(presence + row) * (count > 0).to(tl.float32)
    tl.store(place, logit, mask=is_listed)


@triton.jit
def add_bias(
    logits,  # [L, V] fp32, row stride `stride`, changed
    cu,  # [L + 1] int32
    token_ids,  # [N] int32
    values,  # [N] fp32
    stride,
    L,
    V,
    N,
    ENTRIES: tl.constexpr,
):
    entry = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    row = list_of(cu, L, entry)
    token = tl.load(token_ids + entry, mask=entry < N, other=-1)
    is_listed = (token >= 0) & (token < V)
    place = logits + row.to(tl.int64) * stride + token
    value = tl.load(place, mask=is_listed, other=0.0) + tl.load(values + entry, mask=is_listed, other=0.0)
    tl.store(place, value, mask=is_listed)


@triton.jit
def move_listed(
    logits,  # [L, V] fp32, row stride `stride`
    row_ids,  # [R] int64
    cu,  # [R + 1] int32
    token_ids,  # [N] int32
    kept,  # [N] fp32
    stride,
    R,
    V,
    N,
    BACK: tl.constexpr,  # False: logits to kept; True: kept to logits
    ENTRIES: tl.constexpr,
):
    entry = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    row = tl.load(row_ids + list_of(cu, R, entry))
    token = tl.load(token_ids + entry, mask=entry < N, other=-1)
    is_listed = (token >= 0) & (token < V)
    place = logits + row * stride + token
    if BACK:
        tl.store(place, tl.load(kept + entry, mask=is_listed, other=0.0), mask=is_listed)
    else:
        tl.store(kept + entry, tl.load(place, mask=is_listed, other=0.0), mask=is_listed)


@triton.jit
def ban_rows(
    logits,  # [L, V] fp32, row stride `stride`, rows of row_ids become -inf
    row_ids,  # [R] int64
    stride,
    V,
    TILE: tl.constexpr,
):
    row = tl.load(row_ids + tl.program_id(0))
    ids = tl.program_id(1) * TILE + tl.arange(0, TILE)
    tl.store(logits + row * stride + ids, tl.full([TILE], float("-inf"), tl.float32), mask=ids < V)


def _grid(num_ids: int) -> tuple[int]:
    return (-(-num_ids // ENTRIES),)


@on_device
def apply_penalties_(
    logits: Tensor,
    cu: Tensor,
    token_ids: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> int:
    """See kernels/penalties.py."""
    (num_rows, vocab_size), num_ids = logits.shape, token_ids.shape[0]
    if num_ids:
        arguments = (cu, token_ids, output_counts, repetition, frequency, presence)
        sizes = (logits.stride(0), num_rows, vocab_size, num_ids)
        launch(penalize, _grid(num_ids), logits, *arguments, *sizes, ENTRIES=ENTRIES)
    return 0


@on_device
def add_bias_(logits: Tensor, cu: Tensor, token_ids: Tensor, values: Tensor) -> int:
    """See kernels/penalties.py."""
    (num_rows, vocab_size), num_ids = logits.shape, token_ids.shape[0]
    if num_ids:
        sizes = (logits.stride(0), num_rows, vocab_size, num_ids)
        launch(add_bias, _grid(num_ids), logits, cu, token_ids, values, *sizes, ENTRIES=ENTRIES)
    return 0


@on_device
def keep_only_(logits: Tensor, row_ids: Tensor, cu: Tensor, token_ids: Tensor) -> int:
    """See kernels/penalties.py. Listed logits are put aside, the rows filled, the logits put back."""
    num_lists, num_ids, vocab_size = row_ids.shape[0], token_ids.shape[0], logits.shape[1]
    kept = torch.empty(num_ids, device=logits.device)
    arguments = (logits, row_ids, cu, token_ids, kept, logits.stride(0), num_lists, vocab_size, num_ids)
    if num_ids:
        launch(move_listed, _grid(num_ids), *arguments, BACK=False, ENTRIES=ENTRIES)
    if num_lists:
        grid = (num_lists, num_tiles(vocab_size))
        launch(ban_rows, grid, logits, row_ids, logits.stride(0), vocab_size, TILE=TILE)
    if num_ids:
        launch(move_listed, _grid(num_ids), *arguments, BACK=True, ENTRIES=ENTRIES)
    return 0


KERNELS = [
    (penalize, "*fp32 *i32 *i32 *i32 *fp32 *fp32 *fp32 i32 i32 i32 i32", {"ENTRIES": ENTRIES}, 4),
    (add_bias, "*fp32 *i32 *i32 *fp32 i32 i32 i32 i32", {"ENTRIES": ENTRIES}, 4),
    *(
        (move_listed, "*fp32 *i64 *i32 *i32 *fp32 i32 i32 i32 i32", {"BACK": back, "ENTRIES": ENTRIES}, 4)
        for back in (False, True)
    ),
    (ban_rows, "*fp32 *i64 i32 i32", {"TILE": TILE}, 4),
]
