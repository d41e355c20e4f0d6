"""A Llama decoder layer of few rows as one call of the CPU library: what Python costs is then a small part of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decodex.kernels import backend
from decodex.kernels.attention import RowContexts
from decodex.kernels.checks import describe
from decodex.kernels.linear import PackedLinear, native_descriptor

__all__ = ["FusedLayer", "LayerParts", "fuse_layer"]


@dataclass(frozen=True)
class LayerParts:
    """The weights of one layer: hidden size H, Hq and Hkv heads of D, MLP of I."""

    qkv: PackedLinear  # [(Hq + 2 Hkv) D, K]
    out: PackedLinear  # [H, Hq D]
    gate_up: PackedLinear  # [2 I, H]
    down: PackedLinear  # [H, I]
    post_norm: Tensor  # [H] fp32
    q_norm: Tensor | None  # [D] fp32
    k_norm: Tensor | None  # [D] fp32
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    window: int  # 0: full attention


def fuse_layer(parts: LayerParts) -> FusedLayer | None:
    """The layer as one call, or None where its weights are not packed for the CPU library."""
    linears = (parts.qkv, parts.out, parts.gate_up, parts.down)
    descriptors = [native_descriptor(linear) for linear in linears]
    found = [descriptor for descriptor in descriptors if descriptor is not None]
    return FusedLayer(parts, backend.library, found) if len(found) == len(linears) else None


class FusedLayer:
    """Bit for bit `rope_and_store_`, `paged_attention`, `rms_norm`, `silu_mul` and the four linear layers in turn."""

    def __init__(self, parts: LayerParts, library: Any, descriptors: list[tuple[int, ...]]) -> None:
        """`descriptors`: of q|k|v, output, gate|up and down."""
        heads, kv_heads, dim = parts.num_heads, parts.num_kv_heads, parts.head_dim
        self._parts, self._library = parts, library
        self._linears = torch.tensor(descriptors, dtype=torch.int64)
        inner, self._hidden = parts.down.in_features, parts.out.out_features
        sizes = (parts.qkv.out_features, parts.out.in_features, parts.gate_up.out_features)
        if sizes != ((heads + 2 * kv_heads) * dim, heads * dim, 2 * inner):
            raise ValueError(f"parts: {heads} and {kv_heads} heads of {dim} do not fit layers of sizes {sizes}")
        self._norms = [norm.contiguous() for norm in (parts.post_norm, parts.q_norm, parts.k_norm) if norm is not None]
        has_norms = parts.q_norm is not None
        self._width = sum(sizes) + self._hidden + inner  # of scratch, floats a row
        self._constants = (
            self._linears.data_ptr(),
            self._norms[0].data_ptr(),
            self._norms[1].data_ptr() if has_norms else 0,
            self._norms[2].data_ptr() if has_norms else 0,
            *(heads, kv_heads, dim, parts.eps, dim**-0.5, parts.window),
        )

    def __call__(
        self,
        stream: Tensor,
        attn_input: Tensor,
        positions: Tensor,
        slots: Tensor,
        rows: RowContexts,
        cos_sin: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
    ) -> None:
        """stream [T,H] += attention(attn_input [T,K], any row stride), then += MLP(norm(stream)), all fp32.

        positions [T] int32, slots [T] int64, cos_sin, k_cache and v_cache as in `rope_and_store_`. ValueError for wrong
        shapes, dtypes, positions or slots."""
        parts, num_rows = self._parts, stream.shape[0]
        cache = (parts.num_kv_heads, parts.head_dim)
        expected = (
            ("stream", stream, torch.float32, (num_rows, self._hidden)),
            ("positions", positions, torch.int32, (num_rows,)),
            ("slots", slots, torch.int64, (num_rows,)),
            ("k_cache", k_cache, torch.float32, (k_cache.shape[0], *cache)),
            ("v_cache", v_cache, torch.float32, (k_cache.shape[0], *cache)),
            ("cos_sin", cos_sin, torch.float32, cos_sin.shape),
        )
        for name, tensor, dtype, shape in expected:
            if tensor.shape != shape or tensor.dtype is not dtype or not tensor.is_contiguous() or not tensor.is_cpu:
                raise ValueError(f"{name}: expected contiguous {dtype} {list(shape)} on cpu, got {describe(tensor)}")
        if attn_input.shape != (num_rows, parts.qkv.in_features) or attn_input.dtype is not torch.float32:
            raise ValueError(
                f"attn_input: expected float32 [{num_rows}, {parts.qkv.in_features}], got {describe(attn_input)}"
            )
        num_positions, rotary_dim = cos_sin.shape
        *contexts, expected_rows = rows.pointers
        row_stride, column_stride = attn_input.stride()
        if expected_rows != num_rows or rotary_dim > parts.head_dim or rotary_dim % 2 or column_stride != 1:
            raise ValueError(
                f"rows, cos_sin, attn_input: expected {num_rows} rows, [P, R] with even R <= {parts.head_dim} and "
                f"contiguous columns, got {expected_rows}, {describe(cos_sin)} and strides {attn_input.stride()}"
            )
        scratch = torch.empty(num_rows * self._width)
        status = self._library.decoder_layer(
            stream.data_ptr(),
            attn_input.data_ptr(),
            row_stride,
            num_rows,
            *self._constants,
            positions.data_ptr(),
            slots.data_ptr(),
            cos_sin.data_ptr(),
            num_positions,
            rotary_dim,
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            k_cache.shape[0],
            *contexts,
            scratch.data_ptr(),
            torch.get_num_threads(),
        )
        if status in (1, 2):
            name, tensor, end = (
                ("positions", positions, num_positions) if status == 1 else ("slots", slots, k_cache.shape[0])
            )
            raise ValueError(f"{name}: expected values below {end}, got {tensor.tolist()}")
        if status:
            raise MemoryError(f"no memory for a layer of {num_rows} rows")
