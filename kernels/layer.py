"""A Llama decoder layer of few rows as one call of the CPU library: what Python costs is then a small part of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decodex.kernels import backend
from decodex.kernels.attention import RowContexts
from decodex.kernels.checks import describe
from decodex.kernels.linear import PackedLinear, native_descriptor

__all__ = ["FusedLayer", "LayerParts", "Piece", "fuse_layer"]

Piece = tuple[Tensor, Tensor | None]  # x [T, size] fp32 and the norm [size] that it goes through (None: none)


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
    final_norm: Tensor | None = None  # [H] fp32, with `head`: what follows the layer
    head: PackedLinear | None = None  # [V, H]


def fuse_layer(parts: LayerParts) -> FusedLayer | None:
    """The layer as one call, or None where its weights are not packed for the CPU library."""
    linears = [parts.qkv, parts.out, parts.gate_up, parts.down, *([] if parts.head is None else [parts.head])]
    descriptors = [native_descriptor(linear) for linear in linears]
    found = [descriptor for descriptor in descriptors if descriptor is not None]
    return FusedLayer(parts, backend.library, found) if len(found) == len(linears) else None


class FusedLayer:
    """Bit for bit `rms_norm`, `rope_and_store_`, `paged_attention`, `silu_mul` and the linear layers in turn."""

    def __init__(self, parts: LayerParts, library: Any, descriptors: list[tuple[int, ...]]) -> None:
        """`descriptors`: of q|k|v, output, gate|up, down and the head if there is one."""
        heads, kv_heads, dim = parts.num_heads, parts.num_kv_heads, parts.head_dim
        self._parts, self._library = parts, library
        self._linears = torch.tensor(descriptors, dtype=torch.int64)
        inner, self._hidden = parts.down.in_features, parts.out.out_features
        sizes = (parts.qkv.out_features, parts.out.in_features, parts.gate_up.out_features)
        if sizes != ((heads + 2 * kv_heads) * dim, heads * dim, 2 * inner):
            raise ValueError(f"parts: {heads} and {kv_heads} heads of {dim} do not fit layers of sizes {sizes}")
        norms = (parts.post_norm, parts.q_norm, parts.k_norm, parts.final_norm)
        self._norms = [None if norm is None else norm.contiguous() for norm in norms]
        self._width = parts.qkv.in_features + sum(sizes) + self._hidden + inner  # of scratch, floats a row
        self._constants = (
            self._linears.data_ptr(),
            *(0 if norm is None else norm.data_ptr() for norm in self._norms),
            *(heads, kv_heads, dim, parts.eps, dim**-0.5, parts.window),
        )
        self._known: tuple[Tensor, ...] = ()  # cos_sin and the caches that were checked last

    def __call__(
        self,
        stream: Tensor,
        pieces: Sequence[Piece],
        positions: Tensor,
        slots: Tensor,
        rows: RowContexts,
        cos_sin: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
    ) -> tuple[Tensor, Tensor] | None:
        """stream [T,H] += attention(one or two pieces side by side, K wide), then += MLP(norm(stream)), all fp32. With
        a head, returns the final norm of the stream [T,H] and the logits [T,V].

        positions [T] int32, slots [T] int64, cos_sin, k_cache and v_cache as in `rope_and_store_`. ValueError for wrong
        shapes, dtypes, positions or slots."""
        num_rows = stream.shape[0]
        _check("stream", stream, torch.float32, (num_rows, self._hidden))
        _check("positions", positions, torch.int32, (num_rows,))
        _check("slots", slots, torch.int64, (num_rows,))
        tables = (cos_sin, k_cache, v_cache)
        if len(self._known) != 3 or any(mine is not theirs for mine, theirs in zip(self._known, tables, strict=True)):
            self._check_tables(*tables)
            self._known = tables
        *contexts, expected_rows = rows.pointers
        if expected_rows != num_rows:
            raise ValueError(f"rows: expected {num_rows} rows, got {expected_rows}")
        num_positions, rotary_dim = cos_sin.shape
        scratch = torch.empty(num_rows * self._width)
        head, normed, logits = self._parts.head, None, None
        if head is not None:
            normed, logits = torch.empty(num_rows, self._hidden), torch.empty(num_rows, head.out_features)
        status = self._library.decoder_layer(
            stream.data_ptr(),
            num_rows,
            *self._laid(pieces, num_rows),
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
            0 if normed is None else normed.data_ptr(),
            0 if logits is None else logits.data_ptr(),
            torch.get_num_threads(),
        )
        if status:
            raise _error_of(status, positions, num_positions, slots, k_cache.shape[0])
        return None if normed is None or logits is None else (normed, logits)

    def _laid(self, pieces: Sequence[Piece], num_rows: int) -> list[int]:
        """Address, row stride, size and norm of the first piece, and of a second one all but the size."""
        found, total = [], 0
        for x, norm in pieces:
            shape, (row_stride, column_stride) = x.shape, x.stride()
            if shape[0] != num_rows or x.dtype is not torch.float32 or column_stride != 1 or not x.is_cpu:
                raise ValueError(f"pieces: expected float32 [{num_rows}, K], contiguous columns, got {describe(x)}")
            if norm is not None:
                _check("pieces", norm, torch.float32, (shape[1],))
            found.append([x.data_ptr(), row_stride, shape[1], 0 if norm is None else norm.data_ptr()])
            total += shape[1]
        if total != self._parts.qkv.in_features or not 1 <= len(found) <= 2:
            raise ValueError(f"pieces: expected one or two, {self._parts.qkv.in_features} wide together, got {total}")
        first, second = found[0], found[-1]
        return [*first, *second[:2], second[3]]

    def _check_tables(self, cos_sin: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
        parts = self._parts
        shape = (k_cache.shape[0], parts.num_kv_heads, parts.head_dim)
        _check("k_cache", k_cache, torch.float32, shape)
        _check("v_cache", v_cache, torch.float32, shape)
        _check("cos_sin", cos_sin, torch.float32, tuple(cos_sin.shape))
        if cos_sin.dim() != 2 or cos_sin.shape[1] > parts.head_dim or cos_sin.shape[1] % 2:
            raise ValueError(f"cos_sin: expected [P, R] with even R <= {parts.head_dim}, got {describe(cos_sin)}")


def _check(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape or tensor.dtype is not dtype or not tensor.is_contiguous() or not tensor.is_cpu:
        kind = str(dtype).removeprefix("torch.")
        raise ValueError(f"{name}: expected contiguous {kind} {list(shape)} on cpu, got {describe(tensor)}")


def _error_of(status: int, positions: Tensor, num_positions: int, slots: Tensor, num_slots: int) -> Exception:
    if status == 1:
        return ValueError(f"positions: expected values in 0..{num_positions - 1}, got {positions.tolist()}")
    if status == 2:
        return ValueError(f"slots: expected values below {num_slots}, got {slots.tolist()}")
    return MemoryError(f"no memory for a layer of {len(positions)} rows")
