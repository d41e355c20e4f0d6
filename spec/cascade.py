"""Several proposers in one: asked in order, the first draft is taken, and what a grammar forces is extended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from decodex.spec.draft import Draft
from decodex.spec.forced import ForcedProposer
from decodex.spec.proposer import Proposer, ProposerView
from decodex.spec.text_proposer import TextProposer

__all__ = ["Cascade", "DepthLimits"]

DepthLimits = Callable[[str, Sequence[int], Sequence[int]], list[int]]  # as Control.depth_limits


class Cascade:
    """Asks each member, in one call, for all the views that have no draft yet.

    A chain of `forced` that leaves room is extended by the next members that have no weights: certain tokens cost
    nothing but rows, and where they end (a string's content) is where text repeats.
    """

    name = "cascade"

    def __init__(self, members: Sequence[Proposer], depth_limits: DepthLimits | None = None) -> None:
        """`depth_limits` says how deep a member may draft for which sequences; None: as deep as they want."""
        self._members = [(member, member if isinstance(member, TextProposer) else None) for member in members]
        self._depth_limits = depth_limits

    def propose(self, views: Sequence[ProposerView]) -> list[Draft | None]:
        """A draft for each view, or None."""
        drafts: list[Draft | None] = [None] * len(views)
        wanting = [i for i, view in enumerate(views) if view.max_depth > 0]
        for place, (member, text_member) in enumerate(self._members):
            able = wanting if text_member is None else [i for i in wanting if text_member.can_draft(views[i])]
            limits = self._limits(member, [views[i] for i in able])
            asked = [(i, _limited(views[i], limit)) for i, limit in zip(able, limits) if limit > 0]
            if not asked:
                continue
            for (i, view), draft in zip(asked, member.propose([view for _, view in asked]), strict=True):
                if draft and isinstance(member, ForcedProposer):
                    draft = self._extended(view, draft, place)
                drafts[i] = draft or None
            wanting = [i for i in wanting if drafts[i] is None]
        return drafts

    def forget(self, key: int) -> None:
        """The sequence is over; a key that is not known is fine."""
        for member, _ in self._members:
            member.forget(key)

    def _limits(self, member: Proposer, views: Sequence[ProposerView]) -> list[int]:
        wanted = [view.max_depth for view in views]
        if self._depth_limits is None or not views:
            return wanted
        return self._depth_limits(member.name, [view.key for view in views], wanted)

    def _extended(self, view: ProposerView, draft: Draft, place: int) -> Draft:
        """The chain of the member at `place` with what the first one after it that knows something proposes."""
        room = view.max_depth - len(draft)
        if room <= 0:
            return draft
        rest = replace(view, max_depth=room, max_nodes=view.max_nodes - len(draft))
        for _, member in self._members[place + 1 :]:
            if member is not None and (more := member.propose_after(rest, draft.token_ids)):
                return draft.extended(more)
        return draft


def _limited(view: ProposerView, max_depth: int) -> ProposerView:
    return view if view.max_depth <= max_depth else replace(view, max_depth=max_depth)
