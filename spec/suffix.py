"""Suffix decoding: continue the text as it went on where its last tokens occurred before (Oliaro et al. 2024).

In place of a suffix tree, chains of earlier places by n-gram (1, 2 and 4 tokens): the longest grams that occurred
give the places, comparing backwards gives each place's match length, and the places vote on what follows.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from itertools import count, islice
from typing import NamedTuple

from decodex.spec.draft import ROOT, Draft
from decodex.spec.gram_index import GramIndex, common_suffix
from decodex.spec.ngram import copied
from decodex.spec.proposer import ProposerView, TreeShape
from decodex.spec.text_proposer import draft_each

__all__ = ["SuffixCorpus", "SuffixProposer"]

SIZES = (4, 2, 1)
MAX_PLACES = 16  # earlier places that vote, the latest first
MAX_MATCH = 32  # tokens that a match is measured up to
GROWTH = 2  # a draft is at most this many times as long as the match
CORPUS_SIZE = 4  # shortest match with another request's output
BYTES_PER_TOKEN = 360  # of a corpus: the gram, its list of places, the token (measured)


Voter = tuple[float, Sequence[int]]  # its vote, and the tokens that it says follow


class _Continuation(NamedTuple):
    """What followed the last `match` tokens at an earlier place, the tokens that a draft may be."""

    tokens: Sequence[int]
    match: int


class SuffixCorpus:
    """Outputs of ended requests, at most `limit` bytes of them: the longest unused are dropped. One an engine."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._outputs: OrderedDict[int, tuple[int, ...]] = OrderedDict()  # the latest used last
        self._places: dict[tuple[int, ...], list[tuple[int, int]]] = {}  # gram -> (output, end), the latest last
        self._numbers = count()
        self.num_tokens = 0

    @property
    def num_bytes(self) -> int:
        """What the corpus holds in memory, about."""
        return self.num_tokens * BYTES_PER_TOKEN

    def add(self, token_ids: Sequence[int]) -> None:
        """Keep an output (its last tokens, if it is larger than the bound by itself)."""
        output = tuple(token_ids[-(self._limit // BYTES_PER_TOKEN) :]) if self._limit >= BYTES_PER_TOKEN else ()
        if len(output) <= CORPUS_SIZE:
            return
        number = next(self._numbers)
        self._outputs[number] = output
        self.num_tokens += len(output)
        for end in range(CORPUS_SIZE, len(output)):
            places = self._places.setdefault(output[end - CORPUS_SIZE : end], [])
            places.append((number, end))
            del places[:-MAX_PLACES]
        while self.num_bytes > self._limit:
            self._drop()

    def continuations(self, tail: Sequence[int], size: int) -> list[_Continuation]:
        """What followed the last tokens of `tail` in earlier outputs, the latest first, at most `size` tokens."""
        found = []
        for number, end in reversed(self._places.get(tuple(tail[-CORPUS_SIZE:]), ())):
            output = self._outputs[number]
            match = common_suffix(output, end, tail, len(tail), MAX_MATCH)
            found.append(_Continuation(output[end : end + size], match))
            self._outputs.move_to_end(number)
        return found

    def _drop(self) -> None:
        number, output = self._outputs.popitem(last=False)
        self.num_tokens -= len(output)
        for end in range(CORPUS_SIZE, len(output)):
            gram = output[end - CORPUS_SIZE : end]
            places = [place for place in self._places.get(gram, ()) if place[0] != number]
            if places:
                self._places[gram] = places
            else:
                self._places.pop(gram, None)


class SuffixProposer:
    """Votes of the places where the last tokens occurred before, in the request's own text and in a corpus.

    Confidences are shares of the votes. A draft is longer after a longer match; a tree follows the likeliest paths.
    """

    name = "suffix"

    def __init__(self, corpus: SuffixCorpus | None = None) -> None:
        self._corpus = corpus
        self._indexes: dict[int, GramIndex] = {}

    def propose(self, views: Sequence[ProposerView]) -> list[Draft | None]:
        """A draft for each view, or None; a miss costs O(new tokens)."""
        return draft_each(self, views)

    def can_draft(self, view: ProposerView) -> bool:
        """Any text may repeat."""
        return True

    def propose_after(self, view: ProposerView, token_ids: Sequence[int]) -> Draft | None:
        """A chain, or a tree if the options have a shape, or None if the last token did not occur before."""
        text = view.token_ids
        index = self._indexes.get(view.key)
        if index is None or index.num_indexed >= len(text):
            index = self._indexes[view.key] = GramIndex(SIZES)
        index.grow(text, len(text) - 1)
        size = min(view.max_depth, view.max_nodes)
        tail = [*text[-MAX_MATCH:], *token_ids]
        found = _own_continuations(index, text, tail, token_ids, size)
        if view.options.suffix_corpus and self._corpus is not None:
            found += self._corpus.continuations(tail, size)
        if not found:
            return None
        longest = max(match for _, match in found)
        voters = [(2.0 ** (match - longest), tokens) for tokens, match in found]  # a token matched less: half a vote
        size = min(size, GROWTH * longest)
        shape = view.options.tree
        return _chain(voters, longest, size) if shape is None else _tree(voters, longest, size, view.max_nodes, shape)

    def forget(self, key: int) -> None:
        """The sequence is over; a key that is not known is fine."""
        self._indexes.pop(key, None)


def _own_continuations(
    index: GramIndex, text: Sequence[int], tail: Sequence[int], drafted: Sequence[int], num_tokens: int
) -> list[_Continuation]:
    """What followed where the longest gram of the tail (text + drafted) occurred before, the latest first."""
    for size in SIZES:
        ends = list(islice(index.ends(tuple(tail[-size:])), MAX_PLACES)) if size <= len(tail) else []
        if ends:
            matches = [common_suffix(text, end, tail, len(tail), MAX_MATCH) for end in ends]
            num_tokens = min(num_tokens, GROWTH * max(matches))
            return [_Continuation(copied(text, drafted, end, num_tokens), m) for end, m in zip(ends, matches)]
    return []


def _chain(voters: list[Voter], longest: int, size: int) -> Draft:
    """Each token the one with the most votes of those that agreed so far; equal votes: the latest's."""
    token_ids: list[int] = []
    confidences: list[float] = []
    for depth in range(size):
        votes: dict[int, float] = {}
        for weight, tokens in voters:
            if depth < len(tokens):
                votes[tokens[depth]] = votes.get(tokens[depth], 0.0) + weight
        if not votes:
            break
        token = max(votes, key=votes.__getitem__)
        token_ids.append(token)
        confidences.append(votes[token] / (sum(votes.values()) + _novelty(longest + depth)))
        if len(votes) > 1:
            voters = [voter for voter in voters if depth < len(voter[1]) and voter[1][depth] == token]
    return Draft.chain(token_ids, SuffixProposer.name, confidences)


class _Branch(NamedTuple):
    """A node that may be added: a token below `parent`, and the voters that have it there."""

    parent: int
    depth: int
    token: int
    confidence: float
    voters: list[Voter]


def _tree(voters: list[Voter], longest: int, max_depth: int, max_nodes: int, shape: TreeShape) -> Draft:
    """As _chain, with more than one token at a place; the likeliest nodes first."""
    max_depth = min(max_depth, len(shape.widths) or max_depth)
    nodes: list[_Branch] = []
    order = count()
    root = _Branch(ROOT, 0, 0, 1.0, voters)
    heap = [(-child.confidence, next(order), child) for child in _children(root, ROOT, longest, shape)]
    heapq.heapify(heap)
    while heap and len(nodes) < min(max_nodes, shape.max_nodes):
        survival, _, branch = heapq.heappop(heap)
        nodes.append(branch)
        if branch.depth < max_depth:
            for child in _children(branch, len(nodes) - 1, longest, shape):
                heapq.heappush(heap, (survival * child.confidence, next(order), child))
    return Draft(
        token_ids=tuple(branch.token for branch in nodes),
        parents=tuple(branch.parent for branch in nodes),
        confidences=tuple(branch.confidence for branch in nodes),
        sources=(SuffixProposer.name,) * len(nodes),
    )


def _children(branch: _Branch, node: int, longest: int, shape: TreeShape) -> list[_Branch]:
    """What the branch's voters say comes next, the most votes first; equal votes: the latest place's."""
    depth = branch.depth
    width = shape.widths[depth] if shape.widths else shape.num_children
    voters: dict[int, list[Voter]] = {}
    for vote in branch.voters:
        if depth < len(vote[1]):
            voters.setdefault(vote[1][depth], []).append(vote)
    votes = {token: sum(weight for weight, _ in agreeing) for token, agreeing in voters.items()}
    total = sum(votes.values()) + _novelty(longest + depth)
    best = sorted(votes, key=votes.__getitem__, reverse=True)[:width]
    return [_Branch(node, depth + 1, token, votes[token] / total, voters[token]) for token in best]


def _novelty(match: int) -> float:
    """The vote for what never followed before: less after a longer match."""
    return 1 / match
