"""Counter-based randomness: every random number is a function of (seed, position, token, purpose), nothing else.

key = the request's 64-bit seed; counter = (token >> 2, position, purpose, 0); one Philox-4x32-10 call serves four
tokens. u = ((x >> 9) + 0.5) * 2^-23 from 23 bits: with 24 bits the half is not representable in fp32 and u can round
to 1.0 (an infinite noise). A use of its own gets a purpose of its own; a counter is never read twice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decodex.kernels.backend import cpu_library, gpu_body
from decodex.kernels.reference import rng as reference

PURPOSE_SAMPLE = 0  # the Gumbel noise of step 8, shared by target and coupled drafts
PURPOSE_XTC = 1
PURPOSE_PROPOSAL = 2
PURPOSE_ACCEPTANCE = 3
PURPOSE_RESIDUAL = 4
PURPOSE_SEED = 5  # derive_seed

philox_4x32 = reference.philox_4x32

_MASK = 0xFFFFFFFF


def gumbel_noise(seeds: Tensor, positions: Tensor, vocab_size: int, purpose: int = PURPOSE_SAMPLE) -> Tensor:
    """Standard Gumbel noise [L, V] fp32 of rows with `seeds` [L] int64 (the bits of a uint64) and `positions` [L]
    int64 (0 <= position < 2^31). Raises ValueError on other shapes or dtypes."""
    if seeds.dtype != torch.int64 or positions.dtype != torch.int64 or seeds.ndim != 1:
        raise ValueError(
            f"seeds and positions: expected int64 [L], got {seeds.dtype} {tuple(seeds.shape)} "
            f"and {positions.dtype} {tuple(positions.shape)}"
        )
    if positions.shape != seeds.shape or vocab_size < 1:
        raise ValueError(
            f"positions: expected shape {tuple(seeds.shape)} and vocab_size >= 1, "
            f"got {tuple(positions.shape)} and {vocab_size}"
        )
    library = cpu_library() if seeds.device.type == "cpu" else None
    if library is None:
        noise: Tensor = (gpu_body("rng", seeds) or reference).gumbel_noise(seeds, positions, vocab_size, purpose)
        return noise
    seeds, positions = seeds.contiguous(), positions.contiguous()
    num_rows = seeds.shape[0]
    noise = torch.empty(num_rows, vocab_size, dtype=torch.float32, device=seeds.device)
    library.gumbel_noise(
        seeds.data_ptr(), positions.data_ptr(), num_rows, vocab_size, purpose, noise.data_ptr(), torch.get_num_threads()
    )
    return noise


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
