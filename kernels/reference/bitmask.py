"""Token bitmasks by unpacking the bits: the oracle of `kernels/bitmask.py`."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_token_bitmask_(logits: Tensor, bitmask: Tensor, row_ids: Tensor | None) -> int:
    """See kernels/bitmask.py. 3: a row id outside the rows (then nothing was changed), else 0."""
    num_rows, vocab_size = logits.shape
    if row_ids is None:
        row_ids = torch.arange(num_rows, device=logits.device)
    if bool(((row_ids < 0) | (row_ids >= num_rows)).any()):
        return 3
    bits = (bitmask[:, :, None] >> torch.arange(32, device=logits.device)) & 1
    is_allowed = bits.flatten(1)[:, :vocab_size] == 1
    logits[row_ids] = torch.where(is_allowed, logits[row_ids], -torch.inf)
    return 0
