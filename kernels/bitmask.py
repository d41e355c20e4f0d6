"""Token bitmasks of grammars over logits rows (step 5 of the row pipeline), in xgrammar's layout."""

from __future__ import annotations

import torch
from torch import Tensor

from decodex.kernels.backend import cpu_library, gpu_body
from decodex.kernels.checks import describe
from decodex.kernels.penalties import check_logits_
from decodex.kernels.reference import bitmask as reference

__all__ = ["apply_token_bitmask_"]


def apply_token_bitmask_(logits: Tensor, bitmask: Tensor, row_ids: Tensor | None = None) -> Tensor:
    """Tokens whose bit is not set become -inf in logits [L, V] fp32, in place; returns logits.

    bitmask: [R, ceil(V / 32)] int32, token t is bit t % 32 of word t // 32 (wider is fine, bits beyond V are ignored);
    row_ids: [R] int64 (distinct), None when R = L. Raises ValueError for wrong shapes or rows.
    """
    check_logits_(logits)
    num_rows, vocab_size = logits.shape
    num_masks = num_rows if row_ids is None else row_ids.numel()
    num_words = (vocab_size + 31) // 32
    if bitmask.dtype is not torch.int32 or bitmask.ndim != 2 or bitmask.device != logits.device:
        raise ValueError(f"bitmask: expected int32 [R, {num_words}] on {logits.device}, got {describe(bitmask)}")
    if bitmask.shape[0] != num_masks or bitmask.shape[1] < num_words:
        raise ValueError(f"bitmask: expected int32 [{num_masks}, {num_words}], got {describe(bitmask)}")
    if row_ids is not None and (row_ids.dtype is not torch.int64 or row_ids.ndim != 1):
        raise ValueError(f"row_ids: expected int64 [{num_masks}], got {describe(row_ids)}")
    if row_ids is not None and row_ids.device != logits.device:
        raise ValueError(f"row_ids: expected a tensor on {logits.device}, got {describe(row_ids)}")
    library = cpu_library() if logits.device.type == "cpu" else None
    if library is None:
        status = (gpu_body("bitmask", logits) or reference).apply_token_bitmask_(logits, bitmask, row_ids)
    else:
        bitmask = bitmask if bitmask.stride(1) == 1 else bitmask.contiguous()
        row_ids = None if row_ids is None else row_ids.contiguous()
        status = library.apply_token_bitmask(
            logits.data_ptr(),
            logits.stride(0),
            num_rows,
            vocab_size,
            bitmask.data_ptr(),
            bitmask.stride(0),
            num_masks,
            0 if row_ids is None else row_ids.data_ptr(),
            torch.get_num_threads(),
        )
    if status:
        raise ValueError(f"row_ids: expected 0..{num_rows - 1}")
    return logits
