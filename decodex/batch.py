"""The views of one step: StepBatch goes into the forward and the row pipeline, StepOutput comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from decodex.models.interface import ForwardBatch
from decodex.outputs import Logprob

if TYPE_CHECKING:
    from decodex.scheduler import PlanEntry

__all__ = ["Rows", "StepBatch", "StepOutput"]


@dataclass(frozen=True)
class Rows:
    """The L logits rows of a step. A row predicts the token at its position, after the committed tokens and its
    ancestors (the draft tokens on its root path, itself included); nothing else about it matters."""

    slots: Tensor  # [L] int64
    positions: Tensor  # [L] int64, absolute position of the token that the row predicts
    slots_host: list[int]  # [L]
    num_output_host: list[int]  # [L] output tokens before the predicted one, ancestors included
    ancestors: list[tuple[int, ...]]  # [L] draft token ids; () at a root row


@dataclass(frozen=True)
class StepBatch:
    """One step: the forward's inputs and the rows, entry after entry; a sampled entry has 1 + num_drafts rows."""

    entries: list[PlanEntry]  # all planned entries
    sampled: list[PlanEntry]  # [B] those that predict tokens, in row order
    forward: ForwardBatch
    rows: Rows
    row_starts: list[int]  # [B] first row of each sampled entry


@dataclass(frozen=True)
class StepOutput:
    """What each sampled entry emits. A token id of -1 marks a row with nothing left to choose (NaN, all masked)."""

    token_ids: list[list[int]]  # [B] lists of 1..K+1 tokens
    accepted: list[list[int]]  # [B] accepted draft nodes, one fewer than tokens
    logprobs: list[list[dict[int, Logprob]] | None]  # [B] per emitted token where wanted

    @property
    def num_new(self) -> list[int]:
        """Tokens emitted by each entry, [B]."""
        return [len(tokens) for tokens in self.token_ids]
