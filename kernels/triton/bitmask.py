"""Token bitmasks on a GPU: masks are read, logits only written, and only where a bit is not set."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from decodex.kernels.triton.launch import TILE, launch, num_tiles, on_device


@triton.jit
def mask_tiles(
    logits,  # [L, V] fp32, row stride `stride`, changed
    bitmask,  # [R, words] int32, row stride `mask_stride`
    row_ids,  # [R] int64, read with ROW_IDS
    stride,
    mask_stride,
    L,
    V,
    ROW_IDS: tl.constexpr,
    TILE: tl.constexpr,
):
    mask_row = tl.program_id(0).to(tl.int64)
    row = mask_row
    if ROW_IDS:
        row = tl.load(row_ids + mask_row)
    ids = tl.program_id(1) * TILE + tl.arange(0, TILE)
    end = tl.where((row >= 0) & (row < L), V, 0)
    words = tl.load(bitmask + mask_row * mask_stride + ids // 32, mask=ids < V, other=-1)
    is_banned = ((words >> (ids % 32)) & 1) == 0
    tl.store(logits + row * stride + ids, tl.full([TILE], float("-inf"), tl.float32), mask=is_banned & (ids < end))


@on_device
def apply_token_bitmask_(logits: Tensor, bitmask: Tensor, row_ids: Tensor | None) -> int:
    """See kernels/bitmask.py; row ids are trusted, one outside the rows is passed over."""
    num_masks, (num_rows, vocab_size) = bitmask.shape[0], logits.shape
    if num_masks:
        bitmask = bitmask if bitmask.stride(1) == 1 else bitmask.contiguous()
        ids = bitmask if row_ids is None else row_ids.contiguous()
        sizes = (logits.stride(0), bitmask.stride(0), num_rows, vocab_size)
        grid = (num_masks, num_tiles(vocab_size))
        launch(mask_tiles, grid, logits, bitmask, ids, *sizes, ROW_IDS=row_ids is not None, TILE=TILE)
    return 0


KERNELS = [
    *(
        (mask_tiles, f"*fp32 *i32 *i{64 if row_ids else 32} i32 i32 i32 i32", {"ROW_IDS": row_ids, "TILE": TILE}, 4)
        for row_ids in (False, True)
    )
]
