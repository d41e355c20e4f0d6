"""Paged attention in plain torch: the oracle of `kernels/attention.py`.

Only elementwise operations in a fixed order (over head dimension, key of the tile, tile), so that a row's bits do not
depend on the other rows: batched matrix products pick their kernels by the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from decodex.kernels.reference.rng import exp_nonpositive

if TYPE_CHECKING:
    from decodex.kernels.attention import RowContexts

TILE = 32  # keys, at absolute multiples
_MAX_GATHERED = 1 << 21  # key elements copied at once: bounds the memory of a step


def _num_keys(rows: RowContexts, row0: int, row1: int) -> Tensor:
    return (rows.ctx_lens[row0:row1] + rows.anc_cu[row0 + 1 : row1 + 1] - rows.anc_cu[row0:row1]).long()


def _slots(rows: RowContexts, position: Tensor, row0: int, row1: int) -> Tensor:
    """KV slots [row1 - row0, C] of logical positions [C]; slot 0 beyond a row's keys."""
    position = position[None, :]
    ctx_lens = rows.ctx_lens[row0:row1].long()[:, None]
    begin, end = rows.anc_cu[row0:row1].long()[:, None], rows.anc_cu[row0 + 1 : row1 + 1].long()[:, None]
    tables = rows.block_tables[rows.row_slot[row0:row1].long()].long()
    is_context = position < ctx_lens
    slot = torch.zeros_like(position + ctx_lens)
    if tables.shape[1]:
        block = torch.where(is_context, position // rows.block_size, 0)
        slot = torch.where(is_context, tables.gather(1, block) * rows.block_size + position % rows.block_size, 0)
    ancestor = begin + position - ctx_lens
    is_ancestor = ~is_context & (ancestor < end)
    if not rows.anc_slots.numel():
        return slot
    return torch.where(is_ancestor, rows.anc_slots[torch.where(is_ancestor, ancestor, 0)], slot)


def _soft_cap(score: Tensor, softcap: float) -> Tensor:
    e = exp_nonpositive(score.abs() * (-2 / softcap))
    return softcap * torch.copysign((1 - e) / (1 + e), score)


def _tile_sums(weight: Tensor) -> Tensor:
    """Sum of [..., TILE] by halves."""
    width = TILE
    while width > 1:
        width //= 2
        weight = weight[..., :width] + weight[..., width:]
    return weight.squeeze(-1)


def _merge_tiles(best: Tensor, total: Tensor, acc: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax states of the tiles [R, Hkv, group, tiles(, Dv)] -> [R, Hkv, group, Dv]; a sink is one more state."""
    running_best = torch.full_like(best[..., 0], -torch.inf)
    running_total, running_acc = torch.zeros_like(running_best), torch.zeros_like(acc[..., 0, :])
    num_tiles = best.shape[-1]
    for tile in range(num_tiles + (sinks is not None)):
        if tile < num_tiles:
            tile_best, tile_total, tile_acc = best[..., tile], total[..., tile], acc[..., tile, :]
        else:
            assert sinks is not None
            tile_best = sinks.view(best.shape[1:3]).expand_as(running_best)
            tile_total, tile_acc = torch.ones_like(running_total), torch.zeros_like(running_acc)
        new_best = torch.maximum(running_best, tile_best)
        shift = torch.where(new_best > -torch.inf, new_best, 0.0)
        old, new = exp_nonpositive(running_best - shift), exp_nonpositive(tile_best - shift)
        running_total = running_total * old + tile_total * new
        running_acc = running_acc * old[..., None] + tile_acc * new[..., None]
        running_best = new_best
    denominator = running_total[..., None]
    return torch.where(denominator == 0, 0.0, running_acc / denominator) + 0.0  # one zero, whatever was padded


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
    num_rows, num_kv_heads, group, k_dim = q.shape
    v_dim, row1 = v_cache.shape[2], row0 + num_rows
    num_keys = _num_keys(rows, row0, row1)
    first_key = (num_keys - window).clamp(min=0) if window > 0 else torch.zeros_like(num_keys)
    first_tile, last_tile = int(first_key.min()) // TILE, -(-int(num_keys.max()) // TILE)
    num_tiles = last_tile - first_tile
    position = torch.arange(first_tile * TILE, last_tile * TILE, device=q.device)
    is_visible = (position >= first_key[:, None]) & (position < num_keys[:, None])  # [R, C]
    slots = _slots(rows, position, row0, row1)

    k = k_cache[slots].permute(3, 0, 2, 1).unsqueeze(3).contiguous()  # [Dk, R, Hkv, 1, C]
    score = q.new_zeros(num_rows, num_kv_heads, group, len(position))
    for d in range(k_dim):
        score = score + q[..., d, None] * k[d]
    score = score * scale
    if softcap > 0:
        score = _soft_cap(score, softcap)
    score = torch.where(is_visible[:, None, None, :], score, -torch.inf)
    score = score.view(num_rows, num_kv_heads, group, num_tiles, TILE)
    best = score.amax(-1)
    weight = exp_nonpositive(score - torch.where(best == -torch.inf, 0.0, best)[..., None])

    v = torch.where(is_visible[:, :, None, None], v_cache[slots], 0.0)
    v = v.view(num_rows, num_tiles, TILE, num_kv_heads, v_dim).permute(2, 0, 3, 1, 4).unsqueeze(3)
    acc = q.new_zeros(num_rows, num_kv_heads, group, num_tiles, v_dim)
    for j in range(TILE):
        acc = acc + weight[..., j, None] * v[j]
    return _merge_tiles(best, _tile_sums(weight), acc, sinks)


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
    num_rows, num_q_heads, k_dim = q.shape
    num_kv_heads = k_cache.shape[1]
    grouped = q.reshape(num_rows, num_kv_heads, num_q_heads // num_kv_heads, k_dim)
    most_keys = int(_num_keys(rows, 0, num_rows).max()) if num_rows else 0
    if most_keys == 0:
        return out.zero_()
    step = max(1, _MAX_GATHERED // (most_keys * num_kv_heads * max(k_dim, v_cache.shape[2])))
    for row0 in range(0, num_rows, step):
        part = grouped[row0 : row0 + step]
        result = _attend(part, k_cache, v_cache, rows, row0, scale, window, softcap, sinks)
        out[row0 : row0 + step] = result.flatten(1, 2)
    return out
