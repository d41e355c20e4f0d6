"""SamplingRows: what the truncations of each logits row need. Built by the caller, read by every body of sampling."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from decodex.kernels.checks import describe

__all__ = ["RareRows", "SamplingRows", "check_rows"]


class RareRows(NamedTuple):
    """The truncations that few requests use; a row at its off values is as if absent."""

    dynatemp_range: Tensor  # [L] fp32, off 0: temperature between T - range and T + range by entropy
    dynatemp_exponent: Tensor  # [L] fp32, 1 is linear in the normalised entropy
    top_n_sigma: Tensor  # [L] fp32, off <= 0: keep logit >= max - n * sigma
    typical_p: Tensor  # [L] fp32, off >= 1
    epsilon_cutoff: Tensor  # [L] fp32, off <= 0: drop p < epsilon
    eta_cutoff: Tensor  # [L] fp32, off <= 0: drop p < min(eta, sqrt(eta) * exp(-H))
    xtc_probability: Tensor  # [L] fp32, off <= 0
    xtc_threshold: Tensor  # [L] fp32
    exempt: Tensor  # [E] int64 token ids that XTC neither counts nor removes


class SamplingRows(NamedTuple):
    """Parameters of L logits rows, on the device of the logits."""

    temperature: Tensor  # [L] fp32, 0 is arg-max
    seeds: Tensor  # [L] int64, the bits of a uint64
    positions: Tensor  # [L] int64, 0 <= position < 2^31
    top_k: Tensor  # [L] int32, off <= 0 or >= V
    top_p: Tensor  # [L] fp32, off >= 1
    min_p: Tensor  # [L] fp32, off <= 0
    rare: RareRows | None = None  # None: no row uses any of them

    def select(self, index: slice | Tensor) -> SamplingRows:
        """The rows at `index` (a slice, or a mask or ids [N])."""
        chosen = {name: getattr(self, name)[index] for name in self._fields[:-1]}
        if self.rare is not None:
            rare = {name: getattr(self.rare, name)[index] for name in RareRows._fields[:-1]}
            chosen["rare"] = self.rare._replace(**rare)
        return self._replace(**chosen)


_DTYPES = {
    "temperature": torch.float32,
    "seeds": torch.int64,
    "positions": torch.int64,
    "top_k": torch.int32,
    "top_p": torch.float32,
    "min_p": torch.float32,
}


def check_rows(rows: SamplingRows, num_rows: int) -> None:
    """ValueError that names the field whose dtype, shape or device is not that of `num_rows` rows."""
    device = rows.temperature.device

    def check(name: str, tensor: Tensor, dtype: torch.dtype, length: int) -> None:
        if tensor.dtype is not dtype or tensor.shape != (length,) or tensor.device != device:
            expected = f"{str(dtype).removeprefix('torch.')} [{length}] on {device}"
            raise ValueError(f"{name}: expected {expected}, got {describe(tensor)}")

    for name, dtype in _DTYPES.items():
        check(name, getattr(rows, name), dtype, num_rows)
    if rows.rare is not None:
        for name in RareRows._fields[:-1]:
            check(name, getattr(rows.rare, name), torch.float32, num_rows)
        check("exempt", rows.rare.exempt, torch.int64, rows.rare.exempt.numel())
