"""The protocol of proposers: they see committed tokens and return drafts; the engine needs nothing else of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from decodex.spec.draft import Draft

__all__ = ["Proposer", "ProposerView"]


@dataclass(frozen=True)
class ProposerView:
    """One sequence as a proposer sees it after a commit."""

    slot: int
    token_ids: Sequence[int]  # prompt and committed output
    num_prompt_tokens: int
    max_draft_depth: int  # deeper nodes could never be emitted (length limits)


class Proposer(Protocol):
    """Guesses the next tokens of sequences that will decode in the next step."""

    def propose(self, views: Sequence[ProposerView]) -> list[Draft | None]:
        """A draft for each view, or None; wrong guesses cost time, never output."""
        ...
