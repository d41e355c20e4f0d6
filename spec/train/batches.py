"""Batches of captured sequences: which go together, and as padded tensors."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from decodex.spec.train.head_module import Rows
from decodex.spec.train.states import Span, StateStore

__all__ = ["Batch", "make_batch", "shuffled"]

_SORTED_TOGETHER = 64  # batches' worth of sequences that are put in the order of their lengths before they are cut
_SIZE_STEP = 64  # of L and A: products of ever new sizes are slow, since oneDNN makes code for each


@dataclass(frozen=True)
class Batch:
    """B sequences, padded to L entries and A rows (multiples of 64); D depths."""

    token_ids: Tensor  # [B, L + 1 + D] int64
    states: Tensor  # [B, L, S] fp32
    rows: Rows
    next_states: Tensor  # [B, A + D - 1, H] fp32: the target's hidden states that the rows of all depths are to predict
    log_totals: Tensor  # [B, A + D - 1] fp32
    top_ids: Tensor  # [B, A + D - 1] int64
    is_valid: Tensor  # [B, A + D - 1] bool: row a at depth k predicts something where [:, a + k] is

    @property
    def num_rows(self) -> int:
        """Rows that predict at the first depth."""
        return int(self.is_valid.sum())


def shuffled(spans: Sequence[Span], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """All spans in batches of at most `batch_tokens` padded tokens (or one span), in an order of this epoch's own."""
    source = random.Random(seed * 1_000_003 + epoch)
    order = list(range(len(spans)))
    source.shuffle(order)
    mean = sum(len(span.token_ids) for span in spans) / max(len(spans), 1)
    together = max(1, int(_SORTED_TOGETHER * batch_tokens / max(mean, 1)))
    batches: list[list[int]] = []
    for start in range(0, len(order), together):
        batch: list[int] = []
        for index in sorted(order[start : start + together], key=lambda i: len(spans[i].token_ids)):
            if batch and len(spans[index].token_ids) * (len(batch) + 1) > batch_tokens:
                batches.append(batch)
                batch = []
            batch.append(index)
        batches.append(batch)
    source.shuffle(batches)
    return batches


def _rounded(size: int) -> int:
    return -(-size // _SIZE_STEP) * _SIZE_STEP


def make_batch(store: StateStore, indices: Sequence[int], num_depths: int, hidden: int, device: torch.device) -> Batch:
    """The spans `indices` as tensors; the last `hidden` of the states are the target's hidden state."""
    spans = [store.spans[index] for index in indices]
    found = [store.read(index) for index in indices]
    size = len(spans)
    num_entries = _rounded(max(len(span.token_ids) for span in spans) - 1)
    num_rows = _rounded(max(span.num_rows for span in spans))
    width = found[0].states.shape[1]
    token_ids = torch.zeros(size, num_entries + 1 + num_depths, dtype=torch.int64)
    states = torch.zeros(size, num_entries, width)
    index = torch.zeros(size, num_rows, dtype=torch.int64)
    following = num_rows + num_depths - 1
    next_states = torch.zeros(size, following, hidden)
    log_totals, top_ids = torch.zeros(size, following), torch.zeros(size, following, dtype=torch.int64)
    is_valid = torch.zeros(size, following, dtype=torch.bool)
    for row, (span, captured) in enumerate(zip(spans, found)):
        length, rows, start = len(span.token_ids), span.num_rows, span.answer_start
        token_ids[row, :length] = torch.tensor(span.token_ids)
        states[row, : length - 1] = captured.states[:-1]
        index[row, :rows] = torch.arange(start - 1, start - 1 + rows)
        next_states[row, :rows] = captured.states[start : start + rows, -hidden:]
        log_totals[row, :rows] = captured.log_totals[start : start + rows]
        top_ids[row, :rows] = captured.top_ids[start : start + rows]
        is_valid[row, :rows] = True
    reads = torch.arange(num_entries)[None, None, :] <= index[..., None]
    tensors = (token_ids, states, next_states, log_totals, top_ids, is_valid)
    token_ids, states, next_states, log_totals, top_ids, is_valid = (tensor.to(device) for tensor in tensors)
    rows_of = Rows(index.to(device), reads.to(device))
    return Batch(token_ids, states, rows_of, next_states, log_totals, top_ids, is_valid)
