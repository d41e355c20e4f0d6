"""Several proposers in one: asked in order, the first draft is taken, and what a grammar forces is extended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from decodex.spec.draft import Draft
from decodex.spec.forced import ForcedProposer
from decodex.spec.proposer import Proposer, ProposerView
from decodex.spec.text_proposer import TextProposer

__all__ = ["Cascade"]


class Cascade:
    """Asks each member, in one call, for all the views that have no draft yet.

    A chain of `forced` that leaves room is extended by the next members that have no weights: certain tokens cost
    nothing but rows, and where they end (a string's content) is where text repeats.
    """

    name = "cascade"

    def __init__(self, members: Sequence[Proposer]) -> None:
        self.members = tuple(members)

    def propose(self, views: Sequence[ProposerView]) -> list[Draft | None]:
        """A draft for each view, or None."""
        drafts: list[Draft | None] = [None] * len(views)
        for place, member in enumerate(self.members):
            wanting = [i for i, draft in enumerate(drafts) if draft is None and views[i].max_depth > 0]
            if not wanting:
                break
            for i, draft in zip(wanting, member.propose([views[i] for i in wanting]), strict=True):
                if draft and isinstance(member, ForcedProposer):
                    draft = _extended(views[i], draft, self.members[place + 1 :])
                drafts[i] = draft or None
        return drafts

    def remember(self, token_ids: Sequence[int]) -> None:
        """These are the output tokens of a sequence that ended well."""
        for member in self.members:
            if isinstance(member, TextProposer):
                member.remember(token_ids)

    def forget(self, key: int) -> None:
        """The sequence is over; a key that is not known is fine."""
        for member in self.members:
            member.forget(key)


def _extended(view: ProposerView, draft: Draft, members: Sequence[Proposer]) -> Draft:
    """The chain with what the first member that knows something proposes after it."""
    room = view.max_depth - len(draft)
    for member in members:
        if room > 0 and isinstance(member, TextProposer):
            rest = replace(view, max_depth=room, max_nodes=view.max_nodes - len(draft))
            if more := member.propose_after(rest, draft.token_ids):
                return draft.extended(more)
    return draft
