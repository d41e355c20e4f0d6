"""logit_bias and allowed_token_ids: fixed lists of token ids for each request. Pipeline step 2."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from decodex.batch import Rows
from decodex.definition import check_int
from decodex.features.feature import RowLists
from decodex.kernels.penalties import add_bias_, keep_only_
from decodex.params import SamplingParams

__all__ = ["AllowedTokens", "LogitBias"]

Array = np.ndarray[Any, Any]


class LogitBias:
    """Adds a number to the logits of token ids; -inf bans. Off where the mapping is empty."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._slots: dict[int, tuple[Array, Array]] = {}

    def check(self, params: SamplingParams) -> None:
        """See Feature."""
        for token in params.logit_bias or ():
            check_int(f"logit_bias[{token}]", token, 0, self._vocab_size - 1)

    def add(self, slot: int, params: SamplingParams) -> bool:
        """See Feature."""
        if not params.logit_bias:
            return False
        ids = np.array(list(params.logit_bias), dtype=np.int32)
        self._slots[slot] = (ids, np.array(list(params.logit_bias.values()), dtype=np.float32))
        return True

    def apply(self, logits: Tensor, rows: Rows) -> None:
        """See Feature."""
        if not self._slots:
            return
        lists = RowLists()
        for row, slot in enumerate(rows.slots_host):
            entry = self._slots.get(slot)
            if entry is not None:
                lists.add(row, *entry)
        if lists:
            device = logits.device
            values = lists.values(np.float32, device)
            add_bias_(logits, lists.cu_of_all(len(logits), device), lists.token_ids(device), values)

    def remove(self, slot: int) -> None:
        """See Feature."""
        self._slots.pop(slot, None)


class AllowedTokens:
    """Everything but the listed tokens becomes -inf. Off where the list is None."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._slots: dict[int, Array] = {}

    def check(self, params: SamplingParams) -> None:
        """See Feature."""
        for index, token in enumerate(params.allowed_token_ids or ()):
            check_int(f"allowed_token_ids[{index}]", token, 0, self._vocab_size - 1)

    def add(self, slot: int, params: SamplingParams) -> bool:
        """See Feature."""
        if params.allowed_token_ids is None:
            return False
        self._slots[slot] = np.unique(np.array(params.allowed_token_ids, dtype=np.int32))
        return True

    def apply(self, logits: Tensor, rows: Rows) -> None:
        """See Feature."""
        if not self._slots:
            return
        lists = RowLists()
        for row, slot in enumerate(rows.slots_host):
            entry = self._slots.get(slot)
            if entry is not None:
                lists.add(row, entry, 0)
        if lists:
            device = logits.device
            row_ids = torch.tensor(lists.row_ids, device=device)
            keep_only_(logits, row_ids, lists.cu_of_listed(device), lists.token_ids(device))

    def remove(self, slot: int) -> None:
        """See Feature."""
        self._slots.pop(slot, None)
