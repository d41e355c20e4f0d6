"""RequestTable: what the device needs of every running sequence, as arrays over stable slots.

A slot belongs to one sequence from admission to its end or preemption. All of it is a function of the sequence's
tokens and parameters, so that recomputing after a preemption restores it. On a CPU the tensors share memory with
the numpy views that are written here; on a GPU the runner copies what a step needs.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import torch

from decodex.features.feature import Feature
from decodex.request import Sequence
from decodex.slot_params import SlotParams

__all__ = ["RequestTable"]


class RequestTable:
    """S = max_num_seqs slots."""

    def __init__(self, num_slots: int, max_blocks: int, features: Seq[Feature], exempt: Seq[int] = ()) -> None:
        """`exempt`: token ids that XTC leaves alone."""
        self.sequences: list[Sequence | None] = [None] * num_slots
        self.block_tables = torch.zeros(num_slots, max_blocks, dtype=torch.int32)  # [S, max_blocks]
        self.params = SlotParams(num_slots, exempt)  # steps 6 to 8
        self.used: list[frozenset[Feature]] = [frozenset()] * num_slots  # the features that each slot uses
        self._features = features
        self._free = list(range(num_slots - 1, -1, -1))
        self._blocks_host: np.ndarray[Any, np.dtype[np.int32]] = self.block_tables.numpy()

    def add(self, seq: Sequence) -> None:
        """Give a sequence a slot and write its parameters there."""
        slot = self._free.pop()
        params = seq.request.params
        seq.slot = slot
        self.sequences[slot] = seq
        self.params.write(slot, params, seq.seed)
        self.set_blocks(seq)
        self.used[slot] = frozenset([feature for feature in self._features if feature.add(slot, params)])

    def set_blocks(self, seq: Sequence) -> None:
        """Write a sequence's block table (a sequence without a slot yet is written when it gets one)."""
        if seq.slot >= 0:
            self._blocks_host[seq.slot, : len(seq.block_ids)] = seq.block_ids

    def remove(self, seq: Sequence) -> None:
        """Free a sequence's slot."""
        assert self.sequences[seq.slot] is seq, f"slot {seq.slot} is not the sequence's"
        for feature in self._features:
            feature.remove(seq.slot)
        self.used[seq.slot] = frozenset()
        self.sequences[seq.slot] = None
        self._free.append(seq.slot)
        seq.slot = -1
