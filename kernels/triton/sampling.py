"""Tokens, truncated logits and log-probabilities on a GPU; the kept sets come from `truncation.py`.

Passes over the logits of a row: arg-max one; a draw one, and a second over the blocks that can still win; a nucleus
one more over the tiles that have mass; log-probabilities the same, and one for ranks. `kernels/sampling.py` gives steps
with rare truncations to the reference body, on the same device.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from decodex.kernels.sampling_rows import SamplingRows
from decodex.kernels.triton.launch import BLOCK, TILE, launch, num_tiles, on_device, power_of_two
from decodex.kernels.triton.order import BAD, lowest_x, order_key, scale_of
from decodex.kernels.triton.rng import gumbel_tile, load_stream
from decodex.kernels.triton.truncation import MAX_BLOCKS, Cuts, find_cuts, tile_masses

_NO_ID = tl.constexpr(0x7FFFFFFF)
_MAX_NOISE = tl.constexpr(16.6365324)  # the noise of the largest word, and far more than the polynomials' error


@triton.jit
def is_block_kept(maxima, blocks, NB, cut, best, scale, lowest, BLOCK: tl.constexpr):
    """Whether a block may hold a kept token; and x of its maximum."""
    x = tl.div_rn(maxima - best, scale)
    is_kept = (blocks < NB) & (x >= lowest) & (x > float("-inf"))
    return is_kept & (order_key(tl.where(is_kept, maxima, best), blocks * BLOCK) >= cut), x


@triton.jit
def draw_tiles(
    logits,  # [L, V] fp32, row stride `stride`
    block_max,  # [L, NB] fp32
    top,  # [L] fp32
    best_ids,  # [L] int64
    state,  # [L] int32
    cut,  # [L] int64
    temperature,  # [L] fp32
    min_p,  # [L] fp32
    seeds,  # [L] int64
    positions,  # [L] int64
    streams,  # [L] int64
    scores,  # [L, T] fp32, written: best kept score of the tile
    ids_out,  # [L, T] int32, written: its id, _NO_ID without one
    stride,
    V,
    NB,
    purpose,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_KEYED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    score = tl.full([], float("-inf"), tl.float32)
    found = tl.full([], _NO_ID, tl.int32)
    if tl.load(state + row) != BAD:
        best = tl.load(top + row)
        scale = scale_of(tl.load(temperature + row))
        lowest = lowest_x(tl.load(min_p + row))
        least_key = tl.load(cut + row)
        seed = tl.load(seeds + row)
        position = tl.load(positions + row)
        best_id = tl.load(best_ids + row).to(tl.int32)
        use, window = load_stream(streams, row, purpose, IS_KEYED)
        noise = gumbel_tile(seed, position, use, window, best_id // 4 * 4, 4)  # the arg-max scores at least its noise
        bound = tl.sum(tl.where(tl.arange(0, 4) == best_id % 4, noise, 0.0))
        blocks = tile * (TILE // BLOCK) + tl.arange(0, TILE // BLOCK)
        maxima = tl.load(block_max + row * NB + blocks, mask=blocks < NB, other=float("-inf"))
        is_alive, block_x = is_block_kept(maxima, blocks, NB, least_key, best, scale, lowest, BLOCK)
        is_alive = is_alive & (block_x + _MAX_NOISE >= bound)
        if tl.max(is_alive.to(tl.int32)) > 0:
            ids = tile * TILE + tl.arange(0, TILE)
            is_read = tl.reshape(tl.broadcast_to(is_alive[:, None], [TILE // BLOCK, BLOCK]), [TILE]) & (ids < V)
            v = tl.load(logits + row * stride + ids, mask=is_read, other=float("-inf"))
            x = tl.div_rn(v - best, scale)
            is_kept = is_read & (x >= lowest) & (x > float("-inf"))
            is_kept = is_kept & (order_key(tl.where(is_kept, v, best), ids) >= least_key)
            noisy = x + gumbel_tile(seed, position, use, window, tile * TILE, TILE)
            noisy = tl.where(is_kept, noisy, float("-inf"))
            score = tl.max(noisy)
            found = tl.min(tl.where(is_kept & (noisy == score), ids, _NO_ID))
    place = row * tl.num_programs(1) + tile
    tl.store(scores + place, score)
    tl.store(ids_out + place, found)


@triton.jit
def argmax_tiles(
    logits,  # [L, V] fp32, row stride `stride`
    scores,  # [L, T] fp32, written; +inf for a tile with NaN or +inf
    ids_out,  # [L, T] int32, written: _NO_ID for a tile of -inf
    stride,
    V,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    ids = tile * TILE + tl.arange(0, TILE)
    v = tl.load(logits + row * stride + ids, mask=ids < V, other=float("-inf"))
    v = tl.where(v < float("inf"), v, float("inf"))
    score = tl.max(v)
    place = row * tl.num_programs(1) + tile
    tl.store(scores + place, score)
    tl.store(ids_out + place, tl.min(tl.where((v == score) & (v > float("-inf")), ids, _NO_ID)))


@triton.jit
def best_of_tiles(
    scores,  # [L, T] fp32
    ids,  # [L, T] int32
    token_ids,  # [L] int64, written: -1 where there is none or a score is +inf
    T,
    T_POWER: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tiles = tl.arange(0, T_POWER)
    score = tl.load(scores + row * T + tiles, mask=tiles < T, other=float("-inf"))
    found = tl.load(ids + row * T + tiles, mask=tiles < T, other=_NO_ID)
    best = tl.max(score)
    token = tl.min(tl.where(score == best, found, _NO_ID))
    tl.store(token_ids + row, tl.where((token == _NO_ID) | (best == float("inf")), -1, token).to(tl.int64))


@triton.jit
def truncate_tiles(
    logits,  # [L, V] fp32, row stride `stride`, overwritten
    block_max,  # [L, NB] fp32
    top,  # [L] fp32
    state,  # [L] int32
    cut,  # [L] int64
    temperature,  # [L] fp32
    min_p,  # [L] fp32
    stride,
    V,
    NB,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    ids = tile * TILE + tl.arange(0, TILE)
    out = tl.full([TILE], float("-inf"), tl.float32)
    if tl.load(state + row) != BAD:
        best = tl.load(top + row)
        scale = scale_of(tl.load(temperature + row))
        lowest = lowest_x(tl.load(min_p + row))
        least_key = tl.load(cut + row)
        blocks = tile * (TILE // BLOCK) + tl.arange(0, TILE // BLOCK)
        maxima = tl.load(block_max + row * NB + blocks, mask=blocks < NB, other=float("-inf"))
        is_alive, _ = is_block_kept(maxima, blocks, NB, least_key, best, scale, lowest, BLOCK)
        if tl.max(is_alive.to(tl.int32)) > 0:
            is_read = tl.reshape(tl.broadcast_to(is_alive[:, None], [TILE // BLOCK, BLOCK]), [TILE]) & (ids < V)
            v = tl.load(logits + row * stride + ids, mask=is_read, other=float("-inf"))
            x = tl.div_rn(v - best, scale)
            is_kept = is_read & (x >= lowest) & (x > float("-inf"))
            is_kept = is_kept & (order_key(tl.where(is_kept, v, best), ids) >= least_key)
            out = tl.where(is_kept, x, out)
    tl.store(logits + row * stride + ids, out, mask=ids < V)


@triton.jit
def list_kept(
    logits,  # [L, V] fp32, row stride `stride`
    block_max,  # [L, NB] fp32
    state,  # [L] int32
    cut,  # [L] int64
    sizes,  # [L] int32, zero at first, added to
    listed,  # [L, N] int64, written: ids of order_key >= cut, in any order; 0, 1, ... in a bad row
    stride,
    V,
    NB,
    N,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    ids = tile * TILE + tl.arange(0, TILE)
    if tl.load(state + row) == BAD:
        tl.store(listed + row * N + ids, ids.to(tl.int64), mask=ids < N)
    else:
        least_key = tl.load(cut + row)
        blocks = tile * (TILE // BLOCK) + tl.arange(0, TILE // BLOCK)
        maxima = tl.load(block_max + row * NB + blocks, mask=blocks < NB, other=float("-inf"))
        is_alive = (blocks < NB) & (order_key(maxima, blocks * BLOCK) >= least_key)
        if tl.max(is_alive.to(tl.int32)) > 0:
            v = tl.load(logits + row * stride + ids, mask=ids < V, other=float("-inf"))
            is_kept = (ids < V) & (order_key(v, ids) >= least_key)
            num = tl.sum(is_kept.to(tl.int32))
            if num > 0:
                place = tl.atomic_add(sizes + row, num, sem="relaxed") + tl.cumsum(is_kept.to(tl.int32)) - 1
                tl.store(listed + row * N + place, ids.to(tl.int64), mask=is_kept & (place < N))


@triton.jit
def count_before(
    logits,  # [L, V] fp32, row stride `stride`
    token_ids,  # [L] int64
    counts,  # [L, T] int32, written: tokens of the tile before token_ids in the order
    stride,
    V,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    token = tl.load(token_ids + row)
    logit = tl.load(logits + row * stride + token)
    ids = tile * TILE + tl.arange(0, TILE)
    v = tl.load(logits + row * stride + ids, mask=ids < V, other=float("-inf"))
    is_before = (ids < V) & ((v > logit) | ((v == logit) & (ids < token)))
    tl.store(counts + row * tl.num_programs(1) + tile, tl.sum(is_before.to(tl.int32)))


def _best(scores: Tensor, ids: Tensor) -> Tensor:
    num_rows, tiles = scores.shape
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=scores.device)
    launch(best_of_tiles, (num_rows,), scores, ids, token_ids, tiles, T_POWER=power_of_two(tiles), num_warps=1)
    return token_ids


def _partials(logits: Tensor) -> tuple[Tensor, Tensor]:
    shape = (logits.shape[0], num_tiles(logits.shape[1]))
    return logits.new_empty(shape), torch.empty(shape, dtype=torch.int32, device=logits.device)


def _draw(logits: Tensor, rows: SamplingRows, cuts: Cuts, purpose: int, streams: Tensor | None = None) -> Tensor:
    scores, ids = _partials(logits)
    launch(
        draw_tiles,
        tuple(scores.shape),
        *(logits, *cuts, rows.temperature.contiguous(), rows.min_p.contiguous()),
        *(rows.seeds.contiguous(), rows.positions.contiguous(), rows.seeds if streams is None else streams),
        *(scores, ids),
        *(logits.stride(0), logits.shape[1], cuts.block_max.shape[1], purpose),
        TILE=TILE,
        BLOCK=BLOCK,
        IS_KEYED=streams is not None,
    )
    return _best(scores, ids)


@on_device
def sample_rows(logits: Tensor, rows: SamplingRows) -> Tensor:
    """[L, V] fp32 logits and rows without rare truncations -> [L] int64 token ids, -1 for a row that has none."""
    return _draw(logits, rows, find_cuts(logits, rows), 0)


@on_device
def truncate_(logits: Tensor, rows: SamplingRows) -> Tensor:
    """In place: x = (logit - max) / T of kept tokens, -inf elsewhere; rows without rare truncations."""
    cuts = find_cuts(logits, rows)
    launch(
        truncate_tiles,
        (logits.shape[0], num_tiles(logits.shape[1])),
        *(logits, cuts.block_max, cuts.top, cuts.state, cuts.cut),
        *(rows.temperature.contiguous(), rows.min_p.contiguous()),
        *(logits.stride(0), logits.shape[1], cuts.block_max.shape[1]),
        TILE=TILE,
        BLOCK=BLOCK,
    )
    return logits


@on_device
def argmax(logits: Tensor) -> Tensor:
    """[L, V] -> [L] int64, ties to the lower id; -1 for a row with NaN, +inf or nothing above -inf."""
    scores, ids = _partials(logits)
    launch(argmax_tiles, tuple(scores.shape), logits, scores, ids, logits.stride(0), logits.shape[1], TILE=TILE)
    return _best(scores, ids)


def _constant_rows(logits: Tensor, top_k: int) -> SamplingRows:
    def full(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((logits.shape[0],), value, dtype=dtype, device=logits.device)

    zeros, ones = full(0, torch.int64), full(1, torch.float32)
    return SamplingRows(ones, zeros, zeros, full(top_k, torch.int32), ones, full(0, torch.float32), None)


@on_device
def gumbel_argmax(
    logits: Tensor, seeds: Tensor, positions: Tensor, purpose: int, streams: Tensor | None = None
) -> Tensor:
    """arg-max of logits [L, V] - maximum + noise, [L] int64; -1 as argmax."""
    rows = _constant_rows(logits, 0)._replace(seeds=seeds, positions=positions)
    return _draw(logits, rows, find_cuts(logits, rows, is_few=True), purpose, streams)


@on_device
def top_tokens(logits: Tensor, n: int, token_ids: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Of logits [L, V], L >= 1: ids [L, n] int64 of the n largest (0 <= n <= V, ties to the lower id, in order), ranks
    [L] int64 of token_ids [L] int64 from 1, row maximum [L] fp32, softmax mass above it [L] int64 in steps of 2^-40
    (-1: no finite maximum; the ids of such a row are any). More than MAX_BLOCKS ids are sorted by torch."""
    num_rows, vocab_size = logits.shape
    is_sorted = n > MAX_BLOCKS or n == vocab_size
    rows = _constant_rows(logits, 0 if is_sorted else n)
    cuts = find_cuts(logits, rows, is_few=True)
    grid = (num_rows, num_tiles(vocab_size))
    sizes = (logits.stride(0), vocab_size, cuts.block_max.shape[1])
    masses = torch.empty(grid, dtype=torch.int64, device=logits.device)
    launch(
        tile_masses,
        grid,
        *(logits, cuts.block_max, cuts.top, cuts.state, rows.temperature, rows.top_k, rows.min_p, rows.top_p, masses),
        *sizes,
        EVERY_ROW=True,
        TILE=TILE,
        BLOCK=BLOCK,
    )
    mass = torch.where(cuts.state == int(BAD), -1, masses.sum(1))
    ids = torch.empty(num_rows, n, dtype=torch.int64, device=logits.device)
    if is_sorted:
        ids = torch.sort(logits, dim=1, descending=True, stable=True).indices[:, :n]
    elif n:
        filled = torch.zeros(num_rows, dtype=torch.int32, device=logits.device)
        arguments = (logits, cuts.block_max, cuts.state, cuts.cut, filled, ids)
        launch(list_kept, grid, *arguments, *sizes, n, TILE=TILE, BLOCK=BLOCK)
        ids = ids.sort(dim=1).values
        ids = ids.gather(1, logits.gather(1, ids).sort(dim=1, descending=True, stable=True).indices)
    ranks = None
    if token_ids is not None:
        before = torch.empty(grid, dtype=torch.int32, device=logits.device)
        launch(count_before, grid, logits, token_ids.contiguous(), before, *sizes[:2], TILE=TILE)
        ranks = before.sum(1) + 1
    return ids, ranks, cuts.top, mass


_TILES = {"TILE": TILE, "BLOCK": BLOCK}
KERNELS = [
    (
        draw_tiles,
        "*fp32 *fp32 *fp32 *i64 *i32 *i64 *fp32 *fp32 *i64 *i64 *i64 *fp32 *i32 i32 i32 i32 i32",
        {**_TILES, "IS_KEYED": is_keyed},
        4,
    )
    for is_keyed in (False, True)
] + [
    (argmax_tiles, "*fp32 *fp32 *i32 i32 i32", {"TILE": TILE}, 4),
    (best_of_tiles, "*fp32 *i32 *i64 i32", {"T_POWER": 128}, 1),
    (truncate_tiles, "*fp32 *fp32 *fp32 *i32 *i64 *fp32 *fp32 i32 i32 i32", _TILES, 4),
    (list_kept, "*fp32 *fp32 *i32 *i64 *i32 *i64 i32 i32 i32 i32", _TILES, 4),
    (count_before, "*fp32 *i64 *i32 i32 i32", {"TILE": TILE}, 4),
]
