"""Paged attention in plain torch: the oracle of `kernels/attention.py`.

Only elementwise operations and fixed halving trees over padded dimensions, so that a row's bits do not depend on the
other rows: batched matrix products pick their kernels by the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from decodex.kernels.reference.rng import exp_nonpositive

if TYPE_CHECKING:
    from decodex.kernels.attention import RowContexts

TILE = 32  # keys, at absolute multiples
_MAX_ROWS = 16  # at once: bounds the products held in memory


def _tree_sum(x: Tensor) -> Tensor:
    """Sum over the last dimension by halves of the next power of two."""
    width = 1 << (x.shape[-1] - 1).bit_length()
    x = torch.nn.functional.pad(x, (0, width - x.shape[-1]))
    while width > 1:
        width //= 2
        x = x[..., :width] + x[..., width:]
    return x.squeeze(-1)


def slots_of(rows: RowContexts, first: int, row0: int, row1: int) -> Tensor:
    """KV slots [row1 - row0, TILE] of the logical positions from `first`; 0 beyond a row's keys."""
    device = rows.row_slot.device
    position = (first + torch.arange(TILE, device=device))[None, :]
    ctx_lens = rows.ctx_lens[row0:row1].long()[:, None]
    begin, end = rows.anc_cu[row0:row1].long()[:, None], rows.anc_cu[row0 + 1 : row1 + 1].long()[:, None]
    tables = rows.block_tables[rows.row_slot[row0:row1].long()].long()
    is_context = position < ctx_lens
    block = torch.where(is_context, position // rows.block_size, 0)
    slot = torch.where(is_context, 0, 0)
    if tables.shape[1]:
        slot = tables.gather(1, block) * rows.block_size + position % rows.block_size
    ancestor = begin + position - ctx_lens
    is_ancestor = ~is_context & (ancestor < end)
    own = torch.zeros_like(slot)
    if rows.anc_slots.numel():
        own = rows.anc_slots[torch.where(is_ancestor, ancestor, 0)]
    return torch.where(is_context, slot, torch.where(is_ancestor, own, 0))


def _attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    rows: RowContexts,
    row0: int,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
) -> Tensor:
    """Rows row0.. of the step, q [R, Hkv, group, Dk] -> [R, Hkv, group, Dv]."""
    num_rows, num_kv_heads, group, _ = q.shape
    row1 = row0 + num_rows
    num_ancestors = rows.anc_cu[row0 + 1 : row1 + 1] - rows.anc_cu[row0:row1]
    num_keys = (rows.ctx_lens[row0:row1] + num_ancestors).long()
    first_key = (num_keys - window).clamp(min=0) if window > 0 else torch.zeros_like(num_keys)
    best = q.new_full((num_rows, num_kv_heads, group), -torch.inf)
    total = torch.zeros_like(best)
    acc = q.new_zeros(num_rows, num_kv_heads, group, v_cache.shape[2])
    begin, end = int(first_key.min()), int(num_keys.max())
    for first in range(begin // TILE * TILE, end, TILE):
        slots = slots_of(rows, first, row0, row1)
        position = first + torch.arange(TILE, device=q.device)
        is_visible = (position >= first_key[:, None]) & (position < num_keys[:, None])
        k = k_cache[slots].transpose(1, 2)[:, :, None]  # [R, Hkv, 1, TILE, Dk]
        v = torch.where(is_visible[:, :, None, None], v_cache[slots], 0.0).permute(0, 2, 3, 1)  # [R, Hkv, Dv, TILE]
        score = _tree_sum(q[:, :, :, None, :] * k) * scale
        if softcap > 0:
            e = exp_nonpositive(score.abs() * (-2 / softcap))
            score = softcap * torch.copysign((1 - e) / (1 + e), score)
        score = torch.where(is_visible[:, None, None, :], score, -torch.inf)
        new_best = torch.maximum(best, score.amax(-1))
        shift = torch.where(new_best > -torch.inf, new_best, 0.0)
        weight = exp_nonpositive(score - shift[..., None])
        decay = exp_nonpositive(best - shift)
        total = total * decay + _tree_sum(weight)
        acc = acc * decay[..., None] + _tree_sum(weight[:, :, :, None, :] * v[:, :, None])
        best = new_best
    if sinks is not None:
        sink = sinks.view(num_kv_heads, group)
        new_best = torch.maximum(best, sink)
        decay = exp_nonpositive(best - new_best)
        total = total * decay + exp_nonpositive(sink - new_best)
        acc = acc * decay[..., None]
    return torch.where(total[..., None] > 0, acc / total[..., None], 0.0)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    rows: RowContexts,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
    out: Tensor,
) -> Tensor:
    """See `kernels/attention.py`; writes and returns `out` [T, Hq, Dv]."""
    num_kv_heads = k_cache.shape[1]
    grouped = q.unflatten(1, (num_kv_heads, q.shape[1] // num_kv_heads))
    for row0 in range(0, q.shape[0], _MAX_ROWS):
        part = grouped[row0 : row0 + _MAX_ROWS]
        result = _attend(part, k_cache, v_cache, rows, row0, scale, window, softcap, sinks)
        out[row0 : row0 + _MAX_ROWS] = result.flatten(1, 2)
    return out
