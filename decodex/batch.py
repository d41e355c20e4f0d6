"""The views of one step: StepBatch goes into the forward and the row pipeline, StepOutput comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from decodex.models.interface import ForwardBatch
from decodex.outputs import Logprob

if TYPE_CHECKING:
    from decodex.constrained import ConstrainedText
    from decodex.processors import ProcessorSet
    from decodex.scheduler import PlanEntry

__all__ = ["PromptRows", "RowSequence", "Rows", "StepBatch", "StepOutput"]


class RowSequence(Protocol):
    """What a row knows of its sequence (a `request.Sequence`, or a stand-in of the functional API)."""

    @property
    def token_ids(self) -> list[int]:
        """Committed prompt and output."""
        ...

    @property
    def num_prompt_tokens(self) -> int:
        """How many of them are the prompt's."""
        ...

    @property
    def processors(self) -> ProcessorSet | None:
        """Custom logits processors."""
        ...

    @property
    def constrained(self) -> ConstrainedText | None:
        """Its place in its grammar."""
        ...


@dataclass(frozen=True)
class Rows:
    """The L logits rows of a step. A row predicts the token at its position, after the committed tokens and its
    ancestors (the draft tokens on its root path, itself included); nothing else about it matters."""

    slots: Tensor  # [L] int64
    positions: Tensor  # [L] int64, absolute position of the token that the row predicts
    slots_host: list[int]  # [L]
    num_output_host: list[int]  # [L] output tokens before the predicted one, ancestors included
    ancestors: list[tuple[int, ...]]  # [L] draft token ids; () at a root row
    sequences: Sequence[RowSequence]  # [L] committed tokens of the row's slot; never changed during a step
    errors: dict[int, str] = field(default_factory=dict)  # rows that a processor or grammar failed on, and how
    begun: dict[Any, Any] = field(default_factory=dict)  # what a feature has begun for its `apply`, by the feature


@dataclass(frozen=True)
class PromptRows:
    """Rows that are only read for prompt_logprobs, behind the L sampled ones: positions first .. first+num-1."""

    entry: PlanEntry
    first: int  # position of the first token that is predicted
    num: int


@dataclass(frozen=True)
class StepBatch:
    """One step: the forward's inputs and the rows, entry after entry; a sampled entry has 1 + num_drafts rows."""

    entries: list[PlanEntry]  # all planned entries
    sampled: list[PlanEntry]  # [B] those that predict tokens, in row order
    forward: ForwardBatch
    rows: Rows
    row_starts: list[int]  # [B] first row of each sampled entry
    first_rows: list[int]  # of each planned entry, its first row among the forward's tokens
    prompt_rows: list[PromptRows] = field(default_factory=list)


@dataclass(frozen=True)
class StepOutput:
    """What each sampled entry emits. A token id of -1 marks a row with nothing left to choose (NaN, all masked)."""

    token_ids: list[list[int]]  # [B] lists of 1..K+1 tokens
    accepted: list[list[int]]  # [B] accepted draft nodes, one fewer than tokens
    logprobs: list[list[dict[int, Logprob]] | None]  # [B] per emitted token where wanted
    errors: list[str | None]  # [B] why the last token is -1, where a feature knows
    prompt_logprobs: list[list[dict[int, Logprob]]]  # one list for each of batch.prompt_rows

    @property
    def num_new(self) -> list[int]:
        """Tokens emitted by each entry, [B]."""
        return [len(tokens) for tokens in self.token_ids]
