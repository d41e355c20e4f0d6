"""Bias, allow sets and penalties by indexing: the oracle of `kernels/penalties.py`, equal bit for bit.

Each returns the status of the compiled body: 0, or what is wrong with the lists (then nothing was changed)."""

from __future__ import annotations

import torch
from torch import Tensor


def list_status(cu: Tensor, token_ids: Tensor, vocab_size: int) -> int:
    """1: cu is not 0, ascending, N. 2: an id outside the vocabulary. 0: fine."""
    bounds = cu.long()
    if int(bounds[0]) != 0 or int(bounds[-1]) != token_ids.shape[0] or bool((bounds.diff() < 0).any()):
        return 1
    return 2 if bool(((token_ids < 0) | (token_ids >= vocab_size)).any()) else 0


def _rows_of(cu: Tensor) -> Tensor:
    """The list that each entry is in, [N] int64."""
    return torch.repeat_interleave(torch.arange(cu.shape[0] - 1, device=cu.device), cu.long().diff())


def apply_penalties_(
    logits: Tensor,
    cu: Tensor,
    token_ids: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> int:
    """See kernels/penalties.py."""
    status = list_status(cu, token_ids, logits.shape[1])
    if status == 0:
        rows, ids = _rows_of(cu), token_ids.long()
        logit, factor = logits[rows, ids], repetition[rows]
        logit = torch.where(logit > 0, logit / factor, logit * factor)
        logit = logit - frequency[rows] * output_counts.float()
        logits[rows, ids] = logit - presence[rows] * (output_counts > 0).float()
    return status


def add_bias_(logits: Tensor, cu: Tensor, token_ids: Tensor, values: Tensor) -> int:
    """See kernels/penalties.py."""
    status = list_status(cu, token_ids, logits.shape[1])
    if status == 0:
        rows, ids = _rows_of(cu), token_ids.long()
        logits[rows, ids] = logits[rows, ids] + values
    return status


def keep_only_(logits: Tensor, row_ids: Tensor, cu: Tensor, token_ids: Tensor) -> int:
    """See kernels/penalties.py."""
    status = list_status(cu, token_ids, logits.shape[1])
    if status == 0 and bool(((row_ids < 0) | (row_ids >= logits.shape[0])).any()):
        status = 3
    if status == 0:
        rows, ids = row_ids[_rows_of(cu)], token_ids.long()
        kept = logits[rows, ids]
        logits[row_ids] = -torch.inf
        logits[rows, ids] = kept
    return status
