"""Several proposers in one: asked in order, the first draft is taken, and what a grammar forces is extended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from decodex.spec.draft import Draft
from decodex.spec.forced import ForcedProposer
from decodex.spec.proposer import Proposer, ProposerView
from decodex.spec.text_proposer import TextProposer

__all__ = ["Cascade", "DepthLimits"]

DepthLimits = Callable[[str, Sequence[int], Sequence[int]], list[int]]  # Control.depth_limits


class Cascade:
    """Asks each member, in one call, for all the views without a draft that control lets it draft for.

    A chain of `forced` that leaves room is extended by the next members that have no weights: certain tokens cost
    nothing but rows, and where they end (a string's content) is where text repeats.
    """

    name = "cascade"

    def __init__(self, members: Sequence[Proposer], depth_limits: DepthLimits | None = None) -> None:
        self.members = tuple(members)
        self._depth_limits = depth_limits

    def propose(self, views: Sequence[ProposerView]) -> list[Draft | None]:
        """A draft for each view, or None."""
        drafts: list[Draft | None] = [None] * len(views)
        for place, member in enumerate(self.members):
            wanting = [i for i, draft in enumerate(drafts) if draft is None and views[i].max_depth > 0]
            if not wanting:
                break
            asked = self._limited(member, [views[i] for i in wanting])
            for i, draft in zip(wanting, member.propose(asked), strict=True):
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

    def _limited(self, member: Proposer, views: list[ProposerView]) -> list[ProposerView]:
        """The views with the depths that control allows this member; those it need not see are told depth 0."""
        if self._depth_limits is None or isinstance(member, ForcedProposer):
            return views
        limits = self._depth_limits(member.name, [view.key for view in views], [view.max_depth for view in views])
        return [
            view if view.max_depth <= limit else replace(view, max_depth=limit) for view, limit in zip(views, limits)
        ]


def _extended(view: ProposerView, draft: Draft, members: Sequence[Proposer]) -> Draft:
    """The chain with what the first member that knows something proposes after it."""
    room = view.max_depth - len(draft)
    for member in members:
        if room > 0 and isinstance(member, TextProposer):
            rest = replace(view, max_depth=room, max_nodes=view.max_nodes - len(draft))
            if more := member.propose_after(rest, draft.token_ids):
                return draft.extended(more)
    return draft
