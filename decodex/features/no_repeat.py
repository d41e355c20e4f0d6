"""no_repeat_ngram_size: no n tokens in a row occur twice in prompt and output. Pipeline step 2.

The rule of transformers' NoRepeatNGramLogitsProcessor, as an index of n-grams instead of a scan.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from decodex.batch import Rows
from decodex.features.feature import RowLists
from decodex.kernels.penalties import add_bias_
from decodex.params import SamplingParams

__all__ = ["NoRepeatNgram"]


class _Index:
    """What followed each run of n-1 tokens."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._followers: dict[tuple[int, ...], set[int]] = {}
        self._num_seen = 0

    def catch_up(self, token_ids: Sequence[int]) -> None:
        for end in range(max(self._n, self._num_seen + 1), len(token_ids) + 1):
            *stem, last = token_ids[end - self._n : end]
            self._followers.setdefault(tuple(stem), set()).add(last)
        self._num_seen = len(token_ids)

    def banned(self, token_ids: Sequence[int], ancestors: Sequence[int]) -> list[int]:
        n, tail = self._n, token_ids
        if ancestors:
            tail = [*token_ids[-(n - 1) :], *ancestors] if n > 1 else list(ancestors)
        if len(token_ids) + len(ancestors) < n:
            return []
        stem = tuple(tail[len(tail) - n + 1 :])
        found = set(self._followers.get(stem, ()))
        if ancestors:  # n-grams that end in an ancestor
            for end in range(n, len(tail) + 1):
                if tuple(tail[end - n : end - 1]) == stem:
                    found.add(tail[end - 1])
        return sorted(found)


class NoRepeatNgram:
    """Bans each token that would complete an n-gram of the row's prompt and output."""

    def __init__(self) -> None:
        self._slots: dict[int, _Index] = {}

    def check(self, params: SamplingParams) -> None:
        """See Feature."""

    def add(self, slot: int, params: SamplingParams) -> bool:
        """See Feature."""
        if params.no_repeat_ngram_size is None:
            return False
        self._slots[slot] = _Index(params.no_repeat_ngram_size)
        return True

    def apply(self, logits: Tensor, rows: Rows) -> None:
        """See Feature."""
        if not self._slots:
            return
        lists = RowLists()
        for row, slot in enumerate(rows.slots_host):
            index = self._slots.get(slot)
            if index is None:
                continue
            token_ids = rows.sequences[row].token_ids
            index.catch_up(token_ids)
            banned = index.banned(token_ids, rows.ancestors[row])
            if banned:
                lists.add(row, banned, -np.inf)
        if lists:
            device = logits.device
            values = lists.values(np.float32, device)
            add_bias_(logits, lists.cu_of_all(len(logits), device), lists.token_ids(device), values)

    def remove(self, slot: int) -> None:
        """See Feature."""
        self._slots.pop(slot, None)
