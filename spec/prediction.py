"""Predicted outputs: follow a text that the caller expects, and find the way back to it where the output differs."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import islice

from decodex.spec.draft import ROOT, Draft
from decodex.spec.gram_index import GramIndex, common_suffix
from decodex.spec.proposer import ProposerView, TreeShape
from decodex.spec.text_proposer import draft_each

__all__ = ["PredictionProposer"]

WINDOW = 24  # predicted tokens around the place of a divergence in which the output is looked for first
FAR_SIZE = 4  # last tokens that must agree to go on anywhere else in the prediction
MAX_PLACES = 16  # of those elsewhere that are compared, the latest first
MAX_MATCH = 32  # tokens that a match is measured up to
SURE_MATCH = 3  # tokens in a row that end a divergence
FIRST_GUESS = 0.5  # confidence that the output goes on where it is guessed to


class _Alignment:
    """Where one output stands in its prediction. A cache: rebuilt from the tokens whenever it is missing."""

    def __init__(self, prediction: tuple[int, ...], start: int) -> None:
        self.prediction = prediction
        self.start = start  # of the output in the token ids
        self.num_read = 0  # output tokens
        self.place = 0  # in the prediction, of the next token if the output agrees
        self.num_agreed = SURE_MATCH  # tokens in a row that led here, 0 in a divergence; the start counts as agreed
        self.anchor = 0  # place at which the current or last divergence began
        self.diverged_at = 0  # output token of it
        self._replaced = {1: 1}  # output tokens of a divergence -> predicted tokens that they replaced the last time
        self._far: GramIndex | None = None

    def read(self, token_ids: Sequence[int]) -> None:
        """Follow the output tokens that are new."""
        for end in range(self.start + self.num_read + 1, len(token_ids) + 1):
            token = token_ids[end - 1]
            if self.num_agreed and self.place < len(self.prediction) and self.prediction[self.place] == token:
                self.place += 1
                self.num_agreed += 1
                if self.num_agreed == SURE_MATCH:
                    self._learn(end)
            else:
                if self.num_agreed >= SURE_MATCH:
                    self.anchor, self.diverged_at = self.place, end - 1
                self._search(token_ids, end)
        self.num_read = max(len(token_ids) - self.start, 0)

    def guesses(self, num_tokens: int) -> list[int]:
        """Places of the next token, the likeliest first, [1..2]; `num_tokens` have been read, output and prompt."""
        if self.num_agreed:
            return [self.place]
        num_lost = num_tokens - self.diverged_at
        if num_lost > WINDOW:
            return []
        first = self._replaced.get(num_lost, num_lost)  # as the last time, or as many tokens were replaced
        second = num_lost if first != num_lost else num_lost - 1  # or one less: one token became two, or was put in
        return [place for place in (self.anchor + first, self.anchor + second) if place < len(self.prediction)]

    def _learn(self, end: int) -> None:
        """Keep how many tokens the divergence that is now over has replaced by how many."""
        num_output = end - self.num_agreed - self.diverged_at
        num_predicted = self.place - self.num_agreed - self.anchor
        if num_output > 0 <= num_predicted:
            self._replaced = {**self._replaced, num_output: num_predicted}

    def _search(self, token_ids: Sequence[int], end: int) -> None:
        """Look for the last tokens near the divergence, then, if there are enough of them, anywhere."""
        num_lost = end - self.diverged_at
        same = self.anchor + num_lost  # if as many tokens were replaced
        best = (0, 0, 0)  # tokens that agree, closeness, place
        token = token_ids[end - 1]
        last = min(same + WINDOW, len(self.prediction)) if num_lost <= WINDOW else 0
        for place in range(self.anchor + 1, last + 1):
            if self.prediction[place - 1] == token:
                agreed = common_suffix(token_ids, end, self.prediction, place, MAX_MATCH)
                best = max(best, (agreed, -abs(place - same), place))
        if best[0] < FAR_SIZE <= end - self.start:
            best = max(best, self._search_far(token_ids, end, same))
        self.num_agreed, _, place = best
        self.place = place

    def _search_far(self, token_ids: Sequence[int], end: int, same: int) -> tuple[int, int, int]:
        if self._far is None:
            self._far = GramIndex((FAR_SIZE,))
            self._far.grow(self.prediction, len(self.prediction))
        best = (0, 0, 0)
        for place in islice(self._far.ends(tuple(token_ids[end - FAR_SIZE : end])), MAX_PLACES):
            agreed = common_suffix(token_ids, end, self.prediction, place, MAX_MATCH)
            best = max(best, (agreed, -abs(place - same), place))
        return best


class PredictionProposer:
    """Follows view.prediction, the tokens that the caller expects as the output.

    After a divergence it goes on as if a word had been replaced, until the last tokens agree with the prediction
    again: near the divergence one token is enough, elsewhere FAR_SIZE. With a tree in the options it drafts the two
    likeliest ways to go on.
    """

    name = "prediction"

    def __init__(self) -> None:
        self._alignments: dict[int, _Alignment] = {}

    def propose(self, views: Sequence[ProposerView]) -> list[Draft | None]:
        """A draft for each view, or None; O(new tokens)."""
        return draft_each(self, views)

    def can_draft(self, view: ProposerView) -> bool:
        """With a prediction only."""
        return bool(view.prediction)

    def propose_after(self, view: ProposerView, token_ids: Sequence[int]) -> Draft | None:
        """A chain, or after a divergence two if the options have a tree, or None at the prediction's end."""
        if not view.prediction:
            return None
        alignment = self._alignments.get(view.key)
        if alignment is None or alignment.num_read > len(view.token_ids) - view.num_prompt_tokens:
            alignment = self._alignments[view.key] = _Alignment(view.prediction, view.num_prompt_tokens)
        alignment.read(view.token_ids)
        if token_ids:
            alignment = copy(alignment)
            alignment.read([*view.token_ids, *token_ids])
        guesses = alignment.guesses(len(view.token_ids) + len(token_ids))
        guesses = guesses[: min(_max_branches(view.options.tree), view.max_nodes)]
        size = min(view.max_depth, view.max_nodes // max(len(guesses), 1))
        token_lists = [view.prediction[place : place + size] for place in guesses]
        return _branches(token_lists, alignment.num_agreed) if any(token_lists) else None

    def forget(self, key: int) -> None:
        """The sequence is over; a key that is not known is fine."""
        self._alignments.pop(key, None)


def _max_branches(shape: TreeShape | None) -> int:
    """How many ways to go on a draft may have."""
    if shape is None:
        return 1
    return shape.widths[0] if shape.widths else shape.num_children


def _branches(token_lists: Sequence[Sequence[int]], num_agreed: int) -> Draft:
    """Each list below the root, one after the other; the more tokens agreed before a node, the surer it is."""
    token_ids: list[int] = []
    parents: list[int] = []
    confidences: list[float] = []
    for tokens in token_lists:
        for depth, token in enumerate(tokens):
            parents.append(len(token_ids) - 1 if depth else ROOT)
            token_ids.append(token)
            certainty = num_agreed + depth
            confidences.append(1 - 1 / (certainty + 2) if certainty else FIRST_GUESS / len(token_lists))
    names = (PredictionProposer.name,) * len(token_ids)
    return Draft(tuple(token_ids), tuple(parents), tuple(confidences), names)
