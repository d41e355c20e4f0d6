"""The shortest way to the end: tokens after which a matcher accepts, found on forks of it.

Closing tokens are tried first, and the fewest departures from "always the most closing token" are tried before
more of them (limited discrepancy), within a length that is doubled until something is found. What comes out is an upper
bound on the shortest completion, in tokens of the vocabulary, together with the completion that proves it.
"""

from __future__ import annotations

import heapq
import itertools

import numpy as np
from numpy.typing import NDArray

from decodex.grammar.matcher import Matcher
from decodex.grammar.vocabulary import GrammarVocabulary

__all__ = ["CompletionSearch"]

_FIRST_LIMIT = 8
_NODES_PER_LIMIT = 96
_NUM_CLOSING = 5  # candidates of a position: the most closing ones,
_NUM_LONGEST = 2  # and the longest ones without structure
_NUM_ENDINGS = 8
_FREE_TEXT = 1000  # more legal tokens than this: a text is open, and its quote is the way out
_OPENING, _CLOSING = b"{[(<", b"}])>\"'"


class CompletionSearch:
    """One per vocabulary; holds the order in which tokens are tried. Any thread may search."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._in_structure = _ordered(vocabulary, b"}])")
        self._in_text = _ordered(vocabulary, b'"')
        plain = [i for i, token in vocabulary.text_tokens() if token.isalnum()]
        self._longest = np.array(sorted(plain, key=lambda i: (-len(vocabulary.tokens[i]), i)), dtype=np.int64)
        is_opening = [i for i, t in vocabulary.text_tokens() if any(b in _OPENING for b in t)]
        self.opening_bits = vocabulary.pack(is_opening)

    def shortest(self, matcher: Matcher, max_tokens: int, max_nodes: int = 1000) -> list[int] | None:
        """Tokens that bring the matcher to an accepting state, at most `max_tokens`; None where none were found.

        A function of the matcher's position alone. The matcher itself is not moved.
        """
        if matcher.is_accepting:
            return []
        limits = [max_tokens]  # straight on, first
        while limits[-1] > _FIRST_LIMIT and len(limits) < 8:
            limits.append(_FIRST_LIMIT << (len(limits) - 1))
        for limit in limits:
            num_nodes = min(max_nodes, limit + _NODES_PER_LIMIT)
            found = self._within(matcher, limit, num_nodes) if limit <= max_tokens else None
            if found is not None:
                text = b"".join(self._vocabulary.tokens[token] for token in found)
                return self.follows(matcher, text, len(found) - 1) or found
            max_nodes -= num_nodes
        return None

    def follows(self, matcher: Matcher, text: bytes, max_tokens: int) -> list[int] | None:
        """The tokens of `text` where they complete the matcher's position, at most `max_tokens`, else None."""
        tokens = self._vocabulary.spell_bytes(text)
        return tokens if tokens is not None and self.completes(matcher, tokens, max_tokens) else None

    def completes(self, matcher: Matcher, tokens: list[int], max_tokens: int) -> bool:
        """Whether these are at most `max_tokens` and bring the matcher to an accepting state."""
        if len(tokens) > max_tokens:
            return False
        fork = matcher.fork()
        return all(fork.accept(token) for token in tokens) and fork.is_accepting

    def endings(self, tokens: list[int]) -> list[list[int]]:
        """A completion and what is left of it after its first bytes, each in tokens: what may still fit elsewhere."""
        text = b"".join(self._vocabulary.tokens[token] for token in tokens)
        spelt = [self._vocabulary.spell_bytes(text[start:]) for start in range(1, min(len(text), _NUM_ENDINGS))]
        return [tokens, *(ending for ending in spelt if ending)] if tokens else []

    def _within(self, matcher: Matcher, limit: int, num_nodes: int) -> list[int] | None:
        tie = itertools.count()
        runs = self._candidates(matcher)
        # departures, length, tie; the position, the tokens up to it, what to try there, and which of it is next
        heap = [(0, 0, next(tie), matcher, list[int](), runs, 0)]
        while heap and num_nodes > 0:
            departures, length, _, position, tokens, runs, index = heapq.heappop(heap)
            if index + 1 < len(runs):
                heapq.heappush(heap, (departures + 1, length, next(tie), position, tokens, runs, index + 1))
            if index >= len(runs) or length + len(runs[index]) > limit:
                continue
            num_nodes -= 1
            following = position.fork()
            if not all(following.accept(token) for token in runs[index]):
                continue
            path = [*tokens, *runs[index]]
            if following.is_accepting:
                return path
            if len(path) < limit:
                entry = (departures, len(path), next(tie), following, path, self._candidates(following), 0)
                heapq.heappush(heap, entry)
        return None

    def _candidates(self, position: Matcher) -> list[list[int]]:
        """What to try next, best first: the forced text as a whole, or single tokens."""
        forced = position.forced_text()
        if forced and (tokens := self._vocabulary.spell_bytes(forced)):
            return [tokens]
        row = np.zeros(self._vocabulary.num_words, dtype=np.int32)
        position.fill(row)
        legal = np.unpackbits(row.view(np.uint8), bitorder="little").astype(bool)
        closing = self._in_text if legal.sum() > _FREE_TEXT else self._in_structure
        chosen = [*_first(closing, legal, _NUM_CLOSING), *_first(self._longest, legal, _NUM_LONGEST)]
        return [[token] for token in dict.fromkeys(chosen)]


def _ordered(vocabulary: GrammarVocabulary, first: bytes) -> NDArray[np.int64]:
    keys = {token_id: _closing_key(token, first) for token_id, token in vocabulary.text_tokens()}
    return np.array(sorted(keys, key=lambda i: (keys[i], i)), dtype=np.int64)


def _first(order: NDArray[np.int64], legal: NDArray[np.bool_], count: int) -> list[int]:
    return [int(i) for i in order[legal[order]][:count]]


def _closing_key(token: bytes, first: bytes) -> tuple[int, int]:
    """How much a token looks like an end: single closing signs (`first` before the others), ..., what opens last."""
    num_opening = sum(byte in _OPENING for byte in token)
    num_closing = sum(byte in _CLOSING for byte in token)
    if len(token) == 1 and num_closing:
        return 0, token not in (first[i : i + 1] for i in range(len(first)))
    if token in (b"{}", b"[]"):
        return 1, 0
    if num_opening:
        return 7, len(token)
    if num_closing == len(token):
        return 5, len(token)
    if token.isspace():
        return 6, len(token)
    if token[0] in _CLOSING:
        return 4, len(token)
    return (3 if any(byte in b",;:" for byte in token) else 2), len(token)
