"""Suffix decoding: continue the text as it went on where its last tokens occurred before (Oliaro et al. 2024).

In place of a suffix tree, chains of earlier places by n-gram (2, 4 and 8 tokens): the longest grams that occurred
give the places, comparing backwards gives each place's match length, and the places vote on what follows.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, islice

from decodex.spec.draft import ROOT, Draft
from decodex.spec.gram_index import GramIndex, common_suffix
from decodex.spec.proposer import ProposerView, TreeShape
from decodex.spec.text_proposer import draft_each

__all__ = ["SuffixCorpus", "SuffixProposer"]

SIZES = (8, 4, 2)
MAX_PLACES = 16  # earlier places that vote, the latest first
MAX_MATCH = 32  # tokens that a match is measured up to
GROWTH = 2  # a draft is at most this many times as long as the match
CORPUS_SIZE = 4  # shortest match with another request's output
BYTES_PER_TOKEN = 360  # of a corpus: the gram, its list of places, the token (measured)


@dataclass(frozen=True)
class _Place:
    """An earlier occurrence of the last `match` tokens: text[end:] is what followed it."""

    text: Sequence[int]
    end: int
    match: int
    is_own: bool = True  # of the request's own text


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

    def places(self, tail: Sequence[int]) -> list[_Place]:
        """Where the last tokens of `tail` occur in earlier outputs, the latest first."""
        found = []
        for number, end in reversed(self._places.get(tuple(tail[-CORPUS_SIZE:]), ())):
            output = self._outputs[number]
            match = common_suffix(output, end, tail, len(tail), MAX_MATCH)
            found.append(_Place(output, end, match, is_own=False))
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

    def propose_after(self, view: ProposerView, token_ids: Sequence[int]) -> Draft | None:
        """A chain, or a tree if the options have a shape, or None if no two last tokens occurred before."""
        text = view.token_ids
        index = self._indexes.get(view.key)
        if index is None or index.num_indexed > len(text):
            index = self._indexes[view.key] = GramIndex(SIZES)
        index.grow(text, len(text) - 1)
        tail = [*text[-MAX_MATCH:], *token_ids]
        places = _own_places(index, text, tail)
        if view.options.suffix_corpus and self._corpus is not None:
            places += self._corpus.places(tail)
        if not places:
            return None
        longest = max(place.match for place in places)
        max_depth = min(view.max_depth, GROWTH * longest)
        return _grown(places, token_ids, max_depth, view.max_nodes, view.options.tree)

    def remember(self, token_ids: Sequence[int]) -> None:
        """Put the output of an ended sequence into the corpus."""
        if self._corpus is not None:
            self._corpus.add(token_ids)

    def forget(self, key: int) -> None:
        """The sequence is over; a key that is not known is fine."""
        self._indexes.pop(key, None)


def _own_places(index: GramIndex, text: Sequence[int], tail: Sequence[int]) -> list[_Place]:
    """Where the longest gram of the tail that occurred before did, the latest first."""
    for size in SIZES:
        ends = list(islice(index.ends(tuple(tail[-size:])), MAX_PLACES)) if size <= len(tail) else []
        if ends:
            return [_Place(text, end, common_suffix(text, end, tail, len(tail), MAX_MATCH)) for end in ends]
    return []


@dataclass(frozen=True)
class _Branch:
    """A node that may be added: a token below `parent`, and the places that go on with it."""

    parent: int
    confidence: float
    tokens: tuple[int, ...]  # of its path
    voters: list[tuple[_Place, float]]


def _grown(
    places: Sequence[_Place], drafted: Sequence[int], max_depth: int, max_nodes: int, shape: TreeShape | None
) -> Draft | None:
    """The likeliest nodes first, each with its share of the votes; half a vote for each token matched less."""
    longest = max(place.match for place in places)
    if shape is not None:
        max_nodes = min(max_nodes, shape.max_nodes)
        max_depth = min(max_depth, len(shape.widths)) if shape.widths else max_depth
    root = _Branch(ROOT, 1.0, (), [(place, 2.0 ** (place.match - longest)) for place in places])
    token_ids: list[int] = []
    parents: list[int] = []
    confidences: list[float] = []
    order = count()
    heap = [(-1.0, next(order), root)]
    while heap and len(token_ids) < max_nodes:
        survival, _, branch = heapq.heappop(heap)
        node, depth = ROOT, len(branch.tokens)
        if branch is not root:
            node = len(token_ids)
            token_ids.append(branch.tokens[-1])
            parents.append(branch.parent)
            confidences.append(branch.confidence)
        if depth == max_depth:
            continue
        width = 1 if shape is None else shape.widths[depth] if shape.widths else shape.num_children
        for child in _children(branch, node, drafted, longest, width):
            heapq.heappush(heap, (survival * child.confidence, next(order), child))
    if not token_ids:
        return None
    names = (SuffixProposer.name,) * len(token_ids)
    return Draft(tuple(token_ids), tuple(parents), tuple(confidences), names)


def _children(branch: _Branch, node: int, drafted: Sequence[int], longest: int, width: int) -> list[_Branch]:
    """What the branch's voters say comes next, the most votes first; equal votes: the latest place's."""
    depth = len(branch.tokens)
    votes: dict[int, float] = {}
    voters: dict[int, list[tuple[_Place, float]]] = {}
    for place, weight in branch.voters:
        token = _token_after(place, drafted, branch.tokens)
        if token is not None:
            votes[token] = votes.get(token, 0.0) + weight
            voters.setdefault(token, []).append((place, weight))
    total = sum(votes.values()) + 1 / (longest + depth)  # what never followed before gets less after a longer match
    tokens = sorted(votes, key=votes.__getitem__, reverse=True)[:width]
    return [_Branch(node, votes[token] / total, (*branch.tokens, token), voters[token]) for token in tokens]


def _token_after(place: _Place, drafted: Sequence[int], path: Sequence[int]) -> int | None:
    """The token len(path) after the place; past the end of a request's own text, the copy goes on in the draft."""
    beyond = place.end + len(path) - len(place.text)
    if beyond < 0:
        return place.text[place.end + len(path)]
    if not place.is_own:
        return None
    return drafted[beyond] if beyond < len(drafted) else path[beyond - len(drafted)]
