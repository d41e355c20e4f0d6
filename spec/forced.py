"""What a grammar forces: drafts that are right by construction (up to how the target splits text into tokens)."""

from __future__ import annotations

from collections.abc import Sequence

from decodex.spec.draft import Draft
from decodex.spec.proposer import ProposerView
from decodex.spec.text_proposer import draft_each

__all__ = ["ForcedProposer"]


class ForcedProposer:
    """Proposes view.forced(...), the tokens of the grammar's forced text; nothing without a grammar."""

    name = "forced"

    def propose(self, views: Sequence[ProposerView]) -> list[Draft | None]:
        """A chain for each view, or None."""
        return draft_each(self, views)

    def can_draft(self, view: ProposerView) -> bool:
        """With a grammar only."""
        return view.forced is not None

    def propose_after(self, view: ProposerView, token_ids: Sequence[int]) -> Draft | None:
        """The chain that the grammar forces after these draft tokens, or None."""
        forced = view.forced(token_ids) if view.forced is not None else []
        forced = forced[: min(view.max_depth, view.max_nodes)]
        return Draft.chain(forced, self.name, [1.0] * len(forced)) if forced else None

    def forget(self, key: int) -> None:
        """Nothing is kept of sequences."""
