"""Counter-based randomness: every random number is a function of (seed, position, token, purpose), nothing else.

key = the request's 64-bit seed; counter = (token >> 2, position, purpose | sibling << 8, window); one Philox-4x32-10
call serves four tokens. u = ((x >> 9) + 0.5) * 2^-23 from 23 bits: with 24 bits the half is not representable in fp32
and u can round to 1.0 (an infinite noise). A use of its own gets a purpose of its own; a counter is never read twice.

Draws under `rejection` and `block` influence where a window ends, so the next one must not read them again: their
streams also hold the window's first position, and which of several siblings is drawn or tested. Both are 0 elsewhere.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decodex.kernels.backend import cpu_library, gpu_body
from decodex.kernels.checks import describe
from decodex.kernels.reference import rng as reference

PURPOSE_SAMPLE = 0  # the Gumbel noise of step 8, shared by target and coupled drafts
PURPOSE_XTC = 1
PURPOSE_PROPOSAL = 2
PURPOSE_ACCEPTANCE = 3
PURPOSE_RESIDUAL = 4
PURPOSE_SEED = 5  # derive_seed

philox_4x32 = reference.philox_4x32

_MASK = 0xFFFFFFFF


def pack_streams(windows: Tensor | None, siblings: Tensor | None) -> Tensor | None:
    """window | sibling << 32 as the bodies read them, [L] int64 (window < 2^31, sibling < 2^23); None: all zero."""
    if windows is None:
        return None if siblings is None else siblings << 32
    return windows.contiguous() if siblings is None else windows | siblings << 32


def check_streams(num_rows: int, **rows: Tensor | None) -> None:
    """ValueError that names the argument which is neither None nor int64 [L]."""
    for name, tensor in rows.items():
        if tensor is not None and (tensor.dtype != torch.int64 or tensor.shape != (num_rows,)):
            raise ValueError(f"{name}: expected int64 [{num_rows}], got {describe(tensor)}")


def gumbel_noise(
    seeds: Tensor,
    positions: Tensor,
    vocab_size: int,
    purpose: int = PURPOSE_SAMPLE,
    windows: Tensor | None = None,
    siblings: Tensor | None = None,
) -> Tensor:
    """Standard Gumbel noise [L, V] fp32 of rows with `seeds` [L] int64 (the bits of a uint64) and `positions` [L]
    int64 (0 <= position < 2^31); `windows` and `siblings` [L] int64. Raises ValueError on other shapes or dtypes."""
    if seeds.ndim != 1 or vocab_size < 1:
        raise ValueError(f"expected seeds [L] and vocab_size >= 1, got {describe(seeds)} and {vocab_size}")
    num_rows = seeds.shape[0]
    check_streams(num_rows, seeds=seeds, positions=positions, windows=windows, siblings=siblings)
    streams = pack_streams(windows, siblings)
    library = cpu_library() if seeds.device.type == "cpu" else None
    if library is None:
        body = gpu_body("rng", seeds) or reference
        noise: Tensor = body.gumbel_noise(seeds, positions, vocab_size, purpose, streams)
        return noise
    seeds, positions = seeds.contiguous(), positions.contiguous()
    noise = torch.empty(num_rows, vocab_size, dtype=torch.float32, device=seeds.device)
    library.gumbel_noise(
        seeds.data_ptr(),
        positions.data_ptr(),
        0 if streams is None else streams.data_ptr(),
        num_rows,
        vocab_size,
        purpose,
        noise.data_ptr(),
        torch.get_num_threads(),
    )
    return noise


def uniform(
    seeds: Tensor,
    positions: Tensor,
    purpose: int,
    windows: Tensor | None = None,
    siblings: Tensor | None = None,
) -> Tensor:
    """A number of each row's own in (0, 1), [L] fp32 with 23 bits; arguments as in `gumbel_noise`."""
    num_rows = seeds.numel()
    check_streams(num_rows, seeds=seeds, positions=positions, windows=windows, siblings=siblings)
    streams = pack_streams(windows, siblings)
    library = cpu_library() if seeds.device.type == "cpu" else None
    if library is None:
        coins: Tensor = (gpu_body("rng", seeds) or reference).uniform(seeds, positions, purpose, streams)
        return coins
    seeds, positions = seeds.contiguous(), positions.contiguous()
    coins = torch.empty(num_rows, dtype=torch.float32, device=seeds.device)
    library.uniform(
        seeds.data_ptr(),
        positions.data_ptr(),
        0 if streams is None else streams.data_ptr(),
        num_rows,
        purpose,
        coins.data_ptr(),
    )
    return coins


def seed_bits(seed: int) -> int:
    """A seed in [-2^63, 2^64) as the int64 that carries its 64 bits into a seeds tensor."""
    return ((seed + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


def derive_seed(seed: int, k: int) -> int:
    """Seed of choice `k` of a request: `seed` itself for k = 0, else a hash of both below 2^53 (exact in JSON)."""
    if k == 0:
        return seed
    if k < 0:
        raise ValueError(f"k: expected a choice index >= 0, got {k}")
    bits = seed & ((1 << 64) - 1)
    counter = [torch.tensor(word, device="cpu") for word in (k & _MASK, (k >> 32) & _MASK, PURPOSE_SEED, 0)]
    key = (torch.tensor(bits & _MASK, device="cpu"), torch.tensor(bits >> 32, device="cpu"))
    low, high, _, _ = philox_4x32((counter[0], counter[1], counter[2], counter[3]), key)
    return (int(low) | int(high) << 32) & ((1 << 53) - 1)
