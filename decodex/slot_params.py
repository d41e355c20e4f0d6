"""The numbers of steps 6 to 8, one line for each slot: SamplingParams written into `SamplingRows`, and read by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from decodex.kernels.rng import seed_bits
from decodex.kernels.sampling import RareRows, SamplingRows
from decodex.params import SamplingParams

__all__ = ["SlotParams"]

# off is what a row has that does not use it
OFF = {
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_n_sigma": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
}
SWITCHES = ("dynatemp_range", "top_n_sigma", "typical_p", "epsilon_cutoff", "eta_cutoff", "xtc_probability")


class SlotParams:
    """S lines on the host."""

    def __init__(self, num_slots: int, exempt: Sequence[int] = ()) -> None:
        """`exempt`: token ids that XTC leaves alone."""
        self._numbers = {name: torch.full((num_slots,), value) for name, value in OFF.items()}  # [S] fp32
        self._top_k = torch.zeros(num_slots, dtype=torch.int32)  # [S]
        self._seeds = torch.zeros(num_slots, dtype=torch.int64)  # [S] the bits of the 64-bit seed
        self._is_rare = np.zeros(num_slots, dtype=np.bool_)  # [S]
        self._exempt = torch.tensor(sorted(set(exempt)), dtype=torch.int64)

    def write(self, slot: int, params: SamplingParams, seed: int) -> None:
        """Fill a slot's line."""
        for name, off in OFF.items():
            value = getattr(params, name)
            self._numbers[name][slot] = off if value is None else value
        self._top_k[slot] = min(params.top_k or 0, 2**31 - 1)
        self._seeds[slot] = seed_bits(seed)
        self._is_rare[slot] = any(getattr(params, name) is not None for name in SWITCHES)

    def rows(self, slots: Tensor, positions: Tensor, device: torch.device) -> SamplingRows:
        """The lines of rows with `slots` and `positions` [L] int64; rare truncations only if one of them has any."""
        numbers = self._numbers
        rare = None
        if self._is_rare[slots.numpy()].any():
            fields = {name: numbers[name][slots].to(device) for name in RareRows._fields[:-1]}
            fields["exempt"] = self._exempt.to(device)
            rare = RareRows(**fields)
        return SamplingRows(
            temperature=numbers["temperature"][slots].to(device),
            seeds=self._seeds[slots].to(device),
            positions=positions.to(device),
            top_k=self._top_k[slots].to(device),
            top_p=numbers["top_p"][slots].to(device),
            min_p=numbers["min_p"][slots].to(device),
            rare=rare,
        )
