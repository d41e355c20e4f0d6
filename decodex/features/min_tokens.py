"""min_tokens: until the row's output is long enough, the tokens that would end the sequence are masked."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from decodex.batch import Rows
from decodex.features.feature import RowLists
from decodex.kernels.penalties import add_bias_
from decodex.params import SamplingParams

__all__ = ["MinTokens"]


class MinTokens:
    """Pipeline step 2. Masks EOS (unless it does not end the output) and stop token ids with -inf."""

    def __init__(self, eos_token_ids: frozenset[int], vocab_size: int) -> None:
        self._eos = eos_token_ids
        self._vocab_size = vocab_size
        self._slots: dict[int, tuple[int, list[int]]] = {}

    def check(self, params: SamplingParams) -> None:
        """See Feature."""

    def add(self, slot: int, params: SamplingParams) -> bool:
        """See Feature."""
        is_end = not params.ignore_eos or params.structured_outputs is not None  # a constrained text ends with it
        banned = set(params.stop_token_ids or ()) | (self._eos if is_end else set())
        banned = {token for token in banned if token < self._vocab_size}
        if params.min_tokens == 0 or not banned:
            return False
        self._slots[slot] = (params.min_tokens, sorted(banned))
        return True

    def apply(self, logits: Tensor, rows: Rows) -> None:
        """See Feature."""
        if not self._slots:
            return
        lists = RowLists()
        for row, (slot, num_output) in enumerate(zip(rows.slots_host, rows.num_output_host, strict=True)):
            entry = self._slots.get(slot)
            if entry is not None and num_output < entry[0]:
                lists.add(row, entry[1], -np.inf)
        if lists:
            device = logits.device
            values = lists.values(np.float32, device)
            add_bias_(logits, lists.cu_of_all(len(logits), device), lists.token_ids(device), values)

    def remove(self, slot: int) -> None:
        """See Feature."""
        self._slots.pop(slot, None)
