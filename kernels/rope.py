"""Rotary embedding fused with the KV-cache store."""

import torch
from torch import Tensor

from decodex.kernels import backend
from decodex.kernels.checks import describe
from decodex.kernels.reference import rope as reference


def rope_and_store_(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
) -> None:
    """Rotates q inside qkv in place, writes rotated k and plain v into the cache; qkv's k is then undefined.

    qkv [T, Hq*D + Hkv*D + Hkv*Dv] fp32 (any row stride); positions [T] int32; cos_sin [P,R] fp32 (cos R/2 | sin R/2,
    R <= D: NeoX halves of the first R); slot_mapping [T] int64 (negative: not stored); k_cache [num_slots,Hkv,D] and
    v_cache [num_slots,Hkv,Dv] fp32 contiguous; q_norm, k_norm [D]: RMS norm of each head before the rotation.
    Slots of one call are distinct. Raises ValueError for wrong shapes, dtypes, positions or slots (nothing is written).
    """
    k_shape, v_shape = k_cache.shape, v_cache.shape
    if len(k_shape) != 3 or len(v_shape) != 3 or v_shape[:2] != k_shape[:2]:
        raise ValueError(
            f"k_cache, v_cache: expected [num_slots, Hkv, D] and [num_slots, Hkv, Dv], "
            f"got {describe(k_cache)} and {describe(v_cache)}"
        )
    num_slots, num_kv_heads, k_dim = k_shape
    v_dim = v_shape[2]
    shape, strides = qkv.shape, qkv.stride()
    q_width = shape[-1] - num_kv_heads * (k_dim + v_dim)
    if len(shape) != 2 or qkv.dtype is not torch.float32 or q_width < 0 or q_width % k_dim or strides[1] != 1:
        raise ValueError(
            f"qkv: expected float32 [T, Hq*{k_dim} + {num_kv_heads}*{k_dim} + {num_kv_heads}*{v_dim}] "
            f"with contiguous columns, got {describe(qkv)}"
        )
    num_rows = shape[0]
    _check_index(positions, num_rows, torch.int32, "positions")
    _check_index(slot_mapping, num_rows, torch.int64, "slot_mapping")
    num_positions, rotary_dim = cos_sin.shape
    if rotary_dim > k_dim or rotary_dim % 2:
        raise ValueError(f"cos_sin: expected [P, R] with even R <= {k_dim}, got {describe(cos_sin)}")
    if q_norm is not None:
        _check_norm(q_norm, k_dim, "q_norm")
    if k_norm is not None:
        _check_norm(k_norm, k_dim, "k_norm")
    library = backend.library
    if library is None or not qkv.is_cpu:
        _check_ranges(positions, slot_mapping, num_positions, num_slots)
        reference.rope_and_store_(qkv, positions, cos_sin, slot_mapping, k_cache, v_cache, q_norm, k_norm, eps)
        return
    for name, tensor in (("k_cache", k_cache), ("v_cache", v_cache), ("cos_sin", cos_sin)):
        if tensor.dtype is not torch.float32 or not tensor.is_contiguous() or not tensor.is_cpu:
            raise ValueError(f"{name}: expected contiguous float32 on cpu, got {describe(tensor)}")
    status = library.rope_and_store(
        qkv.data_ptr(),
        strides[0],
        num_rows,
        positions.data_ptr(),
        cos_sin.data_ptr(),
        num_positions,
        rotary_dim,
        slot_mapping.data_ptr(),
        num_slots,
        k_cache.data_ptr(),
        v_cache.data_ptr(),
        q_width // k_dim,
        num_kv_heads,
        k_dim,
        v_dim,
        0 if q_norm is None else q_norm.data_ptr(),
        0 if k_norm is None else k_norm.data_ptr(),
        eps,
        torch.get_num_threads(),
    )
    if status:
        _check_ranges(positions, slot_mapping, num_positions, num_slots)


def _check_norm(weight: Tensor, k_dim: int, name: str) -> None:
    if weight.shape != (k_dim,) or weight.dtype is not torch.float32 or not weight.is_contiguous():
        raise ValueError(f"{name}: expected contiguous float32 [{k_dim}], got {describe(weight)}")


def _check_index(index: Tensor, num_rows: int, dtype: torch.dtype, name: str) -> None:
    if index.shape != (num_rows,) or index.dtype is not dtype or not index.is_contiguous():
        raise ValueError(
            f"{name}: expected contiguous {str(dtype).removeprefix('torch.')} [{num_rows}], got {describe(index)}"
        )


def _check_ranges(positions: Tensor, slot_mapping: Tensor, num_positions: int, num_slots: int) -> None:
    if positions.numel() == 0:
        return
    low, high = int(positions.min()), int(positions.max())
    if low < 0 or high >= num_positions:
        raise ValueError(f"positions: expected values in 0..{num_positions - 1}, got {low}..{high}")
    if int(slot_mapping.max()) >= num_slots:
        raise ValueError(f"slot_mapping: expected values below {num_slots}, got {int(slot_mapping.max())}")
