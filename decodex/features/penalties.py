"""repetition_penalty, frequency_penalty and presence_penalty over prompt and output. Pipeline step 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decodex.batch import Rows
from decodex.features.feature import RowLists
from decodex.kernels.penalties import apply_penalties_
from decodex.params import SamplingParams

__all__ = ["History", "Penalties"]

Ints = np.ndarray[Any, np.dtype[np.int32]]


class History:
    """The distinct tokens of a sequence and how often each is in its output: two sorted int32 arrays.

    8 bytes a distinct token and half as much headroom, so at most min(V, context) * 12 bytes a request.
    """

    def __init__(self) -> None:
        self._ids: Ints = np.empty(0, dtype=np.int32)
        self._counts: Ints = np.empty(0, dtype=np.int32)
        self._size = 0
        self.num_seen = 0

    @property
    def ids(self) -> Ints:
        """Distinct token ids, ascending, [N]."""
        return self._ids[: self._size]

    @property
    def counts(self) -> Ints:
        """How often each is in the output, [N]."""
        return self._counts[: self._size]

    def catch_up(self, token_ids: Sequence[int], num_prompt_tokens: int) -> None:
        """Count the tokens that have been committed since the last call."""
        new = token_ids[self.num_seen :]
        if len(new) > 16:
            known = np.repeat(self.ids, self.counts), self.ids
            output = np.asarray(token_ids[max(self.num_seen, num_prompt_tokens) :], dtype=np.int32)
            ids = np.union1d(known[1], np.asarray(new, dtype=np.int32)).astype(np.int32)
            counts = np.zeros(len(ids), dtype=np.int32)
            np.add.at(counts, np.searchsorted(ids, np.concatenate([known[0], output])), 1)
            self._ids, self._counts, self._size = ids, counts, len(ids)
        else:
            for place, token in enumerate(new, self.num_seen):
                self._push(token, place >= num_prompt_tokens)
        self.num_seen = len(token_ids)

    def _push(self, token: int, is_output: bool) -> None:
        at = int(np.searchsorted(self.ids, token))
        if at == self._size or self._ids[at] != token:
            if self._size == len(self._ids):
                room = 16 + self._size // 2
                self._ids = np.concatenate([self._ids, np.empty(room, dtype=np.int32)])
                self._counts = np.concatenate([self._counts, np.empty(room, dtype=np.int32)])
            for array, value in ((self._ids, token), (self._counts, 0)):
                array[at + 1 : self._size + 1] = array[at : self._size]
                array[at] = value
            self._size += 1
        self._counts[at] += is_output

    def with_ancestors(self, ancestors: Sequence[int]) -> tuple[Ints, Ints]:
        """Ids and counts of a row whose ancestors come after the committed tokens (all of them output)."""
        if not ancestors:
            return self.ids, self.counts
        counts, new = self.counts.copy(), dict[int, int]()
        for token in ancestors:
            at = int(np.searchsorted(self.ids, token))
            if at < self._size and self._ids[at] == token:
                counts[at] += 1
            else:
                new[token] = new.get(token, 0) + 1
        if not new:
            return self.ids, counts
        return (
            np.concatenate([self.ids, np.array(list(new), dtype=np.int32)]),
            np.concatenate([counts, np.array(list(new.values()), dtype=np.int32)]),
        )


def window_counts(tokens: Sequence[int], num_prompt_tokens: int) -> tuple[Ints, Ints]:
    """Distinct ids of `tokens` and how often each is beyond the first `num_prompt_tokens` of them."""
    array = np.asarray(tokens, dtype=np.int32)
    ids, inverse = np.unique(array, return_inverse=True)
    counts = np.bincount(inverse[num_prompt_tokens:], minlength=len(ids)).astype(np.int32)
    return ids, counts


class Penalties:
    """Each token of the row's history counts once for repetition, and as often as it is in the output for frequency."""

    def __init__(self) -> None:
        self._slots: dict[int, tuple[SamplingParams, History]] = {}

    def check(self, params: SamplingParams) -> None:
        """See Feature."""

    def add(self, slot: int, params: SamplingParams) -> bool:
        """See Feature."""
        if params.has_penalties:
            self._slots[slot] = (params, History())
        return params.has_penalties

    def apply(self, logits: Tensor, rows: Rows) -> None:
        """See Feature."""
        if not self._slots:
            return
        lists = RowLists()
        factors = np.zeros((3, len(rows.slots_host)), dtype=np.float32)
        factors[0] = 1.0
        for row, slot in enumerate(rows.slots_host):
            entry = self._slots.get(slot)
            if entry is None:
                continue
            params, history = entry
            lists.add(row, *self._counts_of(rows, row, params, history))
            factors[0, row] = params.repetition_penalty or 1.0
            factors[1, row] = params.frequency_penalty or 0.0
            factors[2, row] = params.presence_penalty or 0.0
        if not lists:
            return
        device = logits.device
        cu, counts = lists.cu_of_all(len(logits), device), lists.values(np.int32, device)
        repetition, frequency, presence = torch.from_numpy(factors).to(device)
        apply_penalties_(logits, cu, lists.token_ids(device), counts, repetition, frequency, presence)

    def remove(self, slot: int) -> None:
        """See Feature."""
        self._slots.pop(slot, None)

    @staticmethod
    def _counts_of(rows: Rows, row: int, params: SamplingParams, history: History) -> tuple[Ints, Ints]:
        seq, ancestors = rows.sequences[row], rows.ancestors[row]
        window = params.penalty_last_n
        if window is None or window >= len(seq.token_ids) + len(ancestors):
            history.catch_up(seq.token_ids, seq.num_prompt_tokens)
            return history.with_ancestors(ancestors)
        tokens = [*seq.token_ids[-window:], *ancestors][-window:]
        first = len(seq.token_ids) + len(ancestors) - window
        return window_counts(tokens, max(0, seq.num_prompt_tokens - first))
