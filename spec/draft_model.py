"""A smaller causal LM as a draft head: its own layers of the paged KV hold the committed tokens themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from decodex.spec.decoder_layer import Entries
from decodex.spec.target import KVLayer, StepTensors

__all__ = ["DraftForward", "DraftModel"]


DraftForward = Callable[[Tensor, Entries, Tensor, StepTensors], Tensor]
"""The model's forward, given by the engine: write the entries of tokens [R] int64, return the logits [W, V] of the rows
`wanted` [W] int64 (they may be overwritten)."""


class DraftModel:
    """A `Head` that needs nothing of the target but its tokens."""

    shift = 0
    taps: tuple[int, ...] = ()
    needs_hidden = False
    token_map: Tensor | None = None

    def __init__(self, forward: DraftForward, kv_layers: Sequence[KVLayer], max_position: int) -> None:
        self.kv_layers, self.max_position = list(kv_layers), max_position
        self._forward = forward

    def inputs(self, step: StepTensors, rows: Tensor) -> None:
        """Nothing."""

    def forward(
        self, token_ids: Tensor, hidden: Tensor | None, entries: Entries, step: StepTensors
    ) -> tuple[None, Tensor]:
        """See Head."""
        wanted = entries.wanted
        if wanted is None:
            wanted = torch.arange(token_ids.shape[0], device=token_ids.device)
        return None, self._forward(token_ids, entries, wanted, step)
