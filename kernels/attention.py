"""Paged attention of rows: each reads its context through a block table, then its own list of draft ancestors.

Keys are walked in logical-position order in tiles at fixed logical positions, so a row's bits do not depend on where
its keys lie, which of them are ancestors, or which other rows are in the step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from decodex.kernels import backend
from decodex.kernels.reference import attention as reference

_FP32 = torch.float32
_num_threads = torch.get_num_threads


@dataclass(frozen=True)
class RowContexts:
    """What each of the T rows may read: positions 0..ctx_len-1 through its block table, then its ancestors.

    Slot of a position = block id * block_size + offset. A plain row counts its own token in ctx_len; a draft row
    has it as its last ancestor. Raises ValueError for other dtypes or shapes; values are the owner's duty."""

    block_tables: Tensor  # [S, max_blocks] int32, block ids
    row_slot: Tensor  # [T] int32, row -> line of block_tables
    ctx_lens: Tensor  # [T] int32
    anc_cu: Tensor  # [T + 1] int32, prefix sums into anc_slots
    anc_slots: Tensor  # [A] int64, KV slots of logical positions ctx_len, ctx_len + 1, ...
    block_size: int
    pointers: tuple[int, ...] = field(init=False, repr=False, compare=False)  # of the fields, for the CPU body

    def __post_init__(self) -> None:
        num_rows = self.row_slot.shape[0]
        expected = {
            "block_tables": (torch.int32, 2, None),
            "row_slot": (torch.int32, 1, num_rows),
            "ctx_lens": (torch.int32, 1, num_rows),
            "anc_cu": (torch.int32, 1, num_rows + 1),
            "anc_slots": (torch.int64, 1, None),
        }
        for name, (dtype, ndim, length) in expected.items():
            tensor: Tensor = getattr(self, name)
            is_right = tensor.dtype == dtype and tensor.ndim == ndim and (length is None or tensor.shape[0] == length)
            if not is_right or (tensor.numel() > 1 and tensor.stride(-1) != 1):
                raise ValueError(
                    f"{name}: expected contiguous {dtype} with {ndim} dimensions and {length or 'any'} entries, "
                    f"got {tensor.dtype} {tuple(tensor.shape)}"
                )
        if self.block_size < 1:
            raise ValueError(f"block_size: expected at least 1, got {self.block_size}")
        pointers = (
            self.block_tables.data_ptr(),
            self.block_tables.stride(0),
            self.row_slot.data_ptr(),
            self.ctx_lens.data_ptr(),
            self.anc_cu.data_ptr(),
            self.anc_slots.data_ptr(),
            self.block_size,
            num_rows,
        )
        object.__setattr__(self, "pointers", pointers)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    rows: RowContexts,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """softmax(scale * q k) v over each row's keys, [T, Hq, Dv] fp32.

    q: [T, Hq, Dk] fp32 (last dimension contiguous); k_cache, v_cache: [num_slots, Hkv, Dk or Dv] fp32 contiguous.
    window > 0: only the last `window` keys, the row's own included; softcap > 0: softcap * tanh(score / softcap);
    sinks: [Hq] fp32, one more score per head whose value is zero; out: contiguous result. A row without keys gets
    zeros. Raises ValueError for other shapes, dtypes or layouts."""
    num_rows, num_q_heads, k_dim = q.shape
    num_slots, num_kv_heads, cache_k_dim = k_cache.shape
    num_v_slots, num_v_heads, v_dim = v_cache.shape
    table, table_stride, row_slot, ctx_lens, anc_cu, anc_slots, block_size, expected_rows = rows.pointers
    if (
        num_rows != expected_rows
        or cache_k_dim != k_dim
        or num_q_heads % num_kv_heads
        or num_v_slots != num_slots
        or num_v_heads != num_kv_heads
    ):
        raise ValueError(
            f"q, k_cache, v_cache: expected [{expected_rows}, m * Hkv, Dk], [S, Hkv, Dk] and [S, Hkv, Dv], "
            f"got {tuple(q.shape)}, {tuple(k_cache.shape)} and {tuple(v_cache.shape)}"
        )
    if not (q.dtype is k_cache.dtype is v_cache.dtype is _FP32):
        raise ValueError(f"q, k_cache, v_cache: expected fp32, got {q.dtype}, {k_cache.dtype} and {v_cache.dtype}")
    if out is None:
        out = torch.empty((num_rows, num_q_heads, v_dim), dtype=torch.float32, device=q.device)
    elif out.shape != (num_rows, num_q_heads, v_dim) or out.dtype is not _FP32 or not out.is_contiguous():
        raise ValueError(
            f"out: expected contiguous fp32 {(num_rows, num_q_heads, v_dim)}, got {out.dtype} {tuple(out.shape)}"
        )
    if sinks is not None and (sinks.shape != (num_q_heads,) or sinks.dtype is not _FP32):
        raise ValueError(f"sinks: expected fp32 [{num_q_heads}], got {sinks.dtype} {tuple(sinks.shape)}")
    library = backend.library
    if library is None or not q.is_cpu:
        return reference.paged_attention(q, k_cache, v_cache, rows, scale, window, softcap, sinks, out)
    row_stride, head_stride, dim_stride = q.stride()
    if dim_stride != 1 or not k_cache.is_contiguous() or not v_cache.is_contiguous():
        raise ValueError(f"q, k_cache, v_cache: expected a contiguous last dimension and caches, got q {q.stride()}")
    status = library.paged_attention(
        q.data_ptr(),
        row_stride,
        head_stride,
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        table,
        table_stride,
        row_slot,
        ctx_lens,
        anc_cu,
        anc_slots,
        block_size,
        num_rows,
        num_q_heads,
        num_kv_heads,
        k_dim,
        v_dim,
        scale,
        window,
        softcap,
        0 if sinks is None else sinks.data_ptr(),
        out.data_ptr(),
        _num_threads(),
    )
    if status:
        raise MemoryError(f"paged_attention: no scratch memory for {num_rows} rows")
    return out
