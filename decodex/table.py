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
from torch import Tensor

from decodex.features.feature import Feature
from decodex.request import Sequence

__all__ = ["RequestTable"]


class RequestTable:
    """S = max_num_seqs slots."""

    def __init__(self, num_slots: int, max_blocks: int, features: Seq[Feature]) -> None:
        self.sequences: list[Sequence | None] = [None] * num_slots
        self.block_tables = torch.zeros(num_slots, max_blocks, dtype=torch.int32)  # [S, max_blocks]
        self.temperature = torch.zeros(num_slots)  # [S] fp32
        self.top_k = torch.zeros(num_slots, dtype=torch.int32)  # [S], 0 = off
        self.top_p = torch.ones(num_slots)  # [S] fp32, 1 = off
        self.min_p = torch.zeros(num_slots)  # [S] fp32, 0 = off
        self.seeds = torch.zeros(num_slots, dtype=torch.int64)  # [S] the bits of the 64-bit seed
        self.num_prompt_tokens = torch.zeros(num_slots, dtype=torch.int64)  # [S]
        self.num_logprobs = np.full(num_slots, -1, dtype=np.int64)  # [S], -1 = none wanted
        self._features = features
        self._free = list(range(num_slots - 1, -1, -1))
        self._blocks_host: np.ndarray[Any, np.dtype[np.int32]] = self.block_tables.numpy()

    def add(self, seq: Sequence) -> None:
        """Give a sequence a slot and write its parameters there."""
        slot = self._free.pop()
        params = seq.request.params
        seq.slot = slot
        self.sequences[slot] = seq
        self.temperature[slot] = params.temperature
        self.top_k[slot] = min(params.top_k or 0, 2**31 - 1)
        self.top_p[slot] = 1.0 if params.top_p is None else params.top_p
        self.min_p[slot] = params.min_p or 0.0
        self.seeds[slot] = seq.seed - 2**64 if seq.seed >= 2**63 else seq.seed
        self.num_prompt_tokens[slot] = seq.num_prompt_tokens
        self.num_logprobs[slot] = -1 if params.logprobs is None else params.logprobs
        self.set_blocks(seq)
        for feature in self._features:
            feature.add(slot, params)

    def set_blocks(self, seq: Sequence) -> None:
        """Write a sequence's block table (a sequence without a slot yet is written when it gets one)."""
        if seq.slot >= 0:
            self._blocks_host[seq.slot, : len(seq.block_ids)] = seq.block_ids

    def remove(self, seq: Sequence) -> None:
        """Free a sequence's slot."""
        assert self.sequences[seq.slot] is seq, f"slot {seq.slot} is not the sequence's"
        for feature in self._features:
            feature.remove(seq.slot)
        self.sequences[seq.slot] = None
        self._free.append(seq.slot)
        seq.slot = -1

    def slots_of(self, block_ids: Seq[int], start: int, end: int, block_size: int) -> Tensor:
        """KV slots of token places start..end-1 of a block list, [end-start] int64."""
        places = np.arange(start, end)
        blocks = np.asarray(block_ids, dtype=np.int64)[places // block_size]
        return torch.from_numpy(blocks * block_size + places % block_size)
