"""Rotary embedding and KV store, any device."""

import torch
from torch import Tensor

from decodex.kernels.reference.norm import rms_norm


def rotate(x: Tensor, cos_sin: Tensor) -> Tensor:
    """x [T,H,D], cos_sin [T,R] (cos R/2 | sin R/2, R <= D) -> the first R of D rotated, i paired with i + R/2."""
    half = cos_sin.shape[-1] // 2
    cos, sin = cos_sin[:, None, :half], cos_sin[:, None, half:]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)


def rope_and_store_(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
) -> None:
    """The arguments of `decodex.kernels.rope.rope_and_store_`, unchecked."""
    rows, (_, kv_heads, k_dim), v_dim = qkv.shape[0], k_cache.shape, v_cache.shape[2]
    q_width = qkv.shape[1] - kv_heads * (k_dim + v_dim)
    q, k, v = torch.split(qkv, [q_width, kv_heads * k_dim, kv_heads * v_dim], dim=1)
    q_heads, k_heads = q.reshape(rows, q_width // k_dim, k_dim), k.reshape(rows, kv_heads, k_dim)
    if q_norm is not None:
        q_heads = rms_norm(q_heads, q_norm, eps)
    if k_norm is not None:
        k_heads = rms_norm(k_heads, k_norm, eps)
    angles = cos_sin[positions.long()]
    q.copy_(rotate(q_heads, angles).reshape(rows, q_width))
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    k_cache[slots] = rotate(k_heads, angles)[kept]
    v_cache[slots] = v.reshape(rows, kv_heads, v_dim)[kept]
