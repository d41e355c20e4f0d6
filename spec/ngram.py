"""Prompt lookup: what followed the last few tokens when they occurred before (Saxena 2023, prompt-lookup-decoding)."""

from __future__ import annotations

from collections.abc import Sequence

from decodex.spec.draft import Draft
from decodex.spec.gram_index import GramIndex
from decodex.spec.proposer import ProposerView
from decodex.spec.text_proposer import draft_each

__all__ = ["NgramProposer", "copied"]


class NgramProposer:
    """Looks up the last n tokens, n from prompt_lookup_max down to prompt_lookup_min, and copies from there."""

    name = "ngram"

    def __init__(self) -> None:
        self._indexes: dict[int, GramIndex] = {}

    def propose(self, views: Sequence[ProposerView]) -> list[Draft | None]:
        """A chain for each view, or None; O(new tokens)."""
        return draft_each(self, views)

    def can_draft(self, view: ProposerView) -> bool:
        """Any text may repeat."""
        return True

    def propose_after(self, view: ProposerView, token_ids: Sequence[int]) -> Draft | None:
        """The chain that followed the most recent earlier occurrence of the longest n-gram that occurred."""
        text = view.token_ids
        sizes = range(view.options.prompt_lookup_max, view.options.prompt_lookup_min - 1, -1)
        index = self._indexes.get(view.key)
        if index is None or index.num_indexed >= len(text) or index.sizes != tuple(sizes):
            index = self._indexes[view.key] = GramIndex(tuple(sizes))
        index.grow(text, len(text) - 1)
        tail = (*text[max(len(text) - sizes.start, 0) :], *token_ids)
        for size in sizes:
            end = next(index.ends(tail[-size:]), 0) if size <= len(tail) else 0
            if end:
                return Draft.chain(copied(text, token_ids, end, min(view.max_depth, view.max_nodes)), self.name)
        return None

    def forget(self, key: int) -> None:
        """The sequence is over; a key that is not known is fine."""
        self._indexes.pop(key, None)


def copied(text: Sequence[int], drafted: Sequence[int], start: int, size: int) -> list[int]:
    """[size] the tokens of text + drafted from `start` (before its end); past the end, the copy goes on in itself."""
    tail = (
        [*text[start : start + size], *drafted][:size] if start + size > len(text) else list(text[start : start + size])
    )
    period = len(text) + len(drafted) - start
    while len(tail) < size:
        tail.append(tail[len(tail) - period])
    return tail
