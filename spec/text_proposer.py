"""The protocol of proposers without weights: pure functions of the tokens, with caches that may go at any time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from decodex.spec.draft import Draft
from decodex.spec.proposer import ProposerView

__all__ = ["TextProposer", "draft_each"]


@runtime_checkable
class TextProposer(Protocol):
    """A proposer that can also draft after draft tokens."""

    name: str

    def propose(self, views: Sequence[ProposerView]) -> list[Draft | None]:
        """A draft for each view, or None."""
        ...

    def can_draft(self, view: ProposerView) -> bool:
        """Whether it could know anything for this view: cheap to ask."""
        ...

    def propose_after(self, view: ProposerView, token_ids: Sequence[int]) -> Draft | None:
        """What follows the committed tokens and these draft tokens, at most view.max_depth deep, or None."""
        ...

    def forget(self, key: int) -> None:
        """The sequence is over; a key that is not known is fine."""
        ...


def draft_each(proposer: TextProposer, views: Sequence[ProposerView]) -> list[Draft | None]:
    """`propose` by `propose_after` nothing, for the views that want a draft."""
    return [proposer.propose_after(view, ()) if view.max_depth > 0 < view.max_nodes else None for view in views]
