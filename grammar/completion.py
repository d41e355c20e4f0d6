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

__all__ = ["CompletionSearch", "search_of"]

_FIRST_LIMIT = 8  # tokens
_STRAIGHT_NODES = 150
_NODES_PER_LIMIT = 16
_NUM_CLOSING = 5  # candidates of a position: the most closing ones,
_NUM_SHORTEST = 2  # the shortest ones,
_NUM_SIGNS = 4  # and single signs
_NUM_ENDINGS = 4
_FREE_TEXT = 1000  # more legal tokens than this: a text is open, and its quote is the way out
_CHUNK = 1024
_OPENING, _CLOSING = b"{[(<", b"}])>\"'"
_SEPARATORS = b"@.:/-_+ "


def search_of(vocabulary: GrammarVocabulary) -> CompletionSearch:
    """The search of a vocabulary, built when first asked for (half a second for a large one)."""
    search: CompletionSearch = vocabulary.built("completion", lambda: CompletionSearch(vocabulary))
    return search


class CompletionSearch:
    """One per vocabulary; holds the order in which tokens are tried. Any thread may search."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._in_structure = _ordered(vocabulary, b"}]")
        self._in_text = _ordered(vocabulary, b'"')
        self._shortest = _ordered(vocabulary, None)
        self._signs = _signs(vocabulary)
        is_opening = [i for i, t in vocabulary.text_tokens() if len(t.translate(None, _OPENING)) < len(t)]
        self.opening_bits = vocabulary.pack(is_opening)

    def shortest(self, matcher: Matcher, max_tokens: int, max_nodes: int = 400) -> list[int] | None:
        """Tokens that bring the matcher to an accepting state, at most `max_tokens`; None where none were found.

        A function of the matcher's position alone. The matcher itself is not moved.
        """
        if matcher.is_accepting:
            return []
        # straight on first, then with more and more departures in texts of growing length
        rounds = [(max_tokens, _STRAIGHT_NODES), *((_FIRST_LIMIT << i, _NODES_PER_LIMIT << i) for i in range(5))]
        for limit, num_nodes in rounds:
            if limit > max_tokens or max_nodes <= 0:
                continue
            found = self._within(matcher, limit, min(num_nodes, max_nodes))
            if found is not None:
                text = b"".join(self._vocabulary.tokens[token] for token in found)
                found = self.follows(matcher, text, len(found) - 1) or found
                return self._improved(matcher, found) if max_nodes > _NODES_PER_LIMIT else found
            max_nodes -= num_nodes
        return None

    def _improved(self, matcher: Matcher, found: list[int]) -> list[int]:
        """A short completion made shorter where a brief look finds one."""
        while 1 < len(found) <= _FIRST_LIMIT:
            shorter = self._within(matcher, len(found) - 1, _NODES_PER_LIMIT // 2)
            if shorter is None:
                break
            found = shorter
        return found

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
        runs = self._candidates(matcher, None)
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
                entry = (departures, len(path), next(tie), following, path, self._candidates(following, path[-1]), 0)
                heapq.heappush(heap, entry)
        return None

    def _candidates(self, position: Matcher, last: int | None) -> list[list[int]]:
        """What to try next, best first: the forced text as a whole, or single tokens."""
        forced = position.forced_text()
        if forced and (tokens := self._vocabulary.spell_bytes(forced)):
            return [tokens]
        row = np.zeros(self._vocabulary.num_words, dtype=np.int32)
        position.fill(row)
        legal = np.unpackbits(row.view(np.uint8), bitorder="little").astype(bool)
        closing = self._in_text if legal.sum() > _FREE_TEXT else self._in_structure
        chosen = _first(closing, legal, _NUM_CLOSING)
        chosen += _first(self._signs, legal, _NUM_SIGNS) + _first(self._shortest, legal, _NUM_SHORTEST)
        if last is not None and self._vocabulary.tokens[last].isalnum():  # no endless digits or letters
            chosen.sort(key=lambda token: self._vocabulary.tokens[token].isalnum())
        return [[token] for token in dict.fromkeys(chosen)]


def _ordered(vocabulary: GrammarVocabulary, first: bytes | None) -> NDArray[np.int64]:
    """All tokens of text: by how much they look like an end, or (None) the shortest first."""
    keys: dict[int, tuple[int, int]] = {}
    for token_id, token in vocabulary.text_tokens():
        keys[token_id] = (len(token), 0) if first is None else _closing_key(token, first)
    return np.array(sorted(keys, key=lambda i: (keys[i], i)), dtype=np.int64)


def _signs(vocabulary: GrammarVocabulary) -> NDArray[np.int64]:
    """Single signs, those first that separate the parts of addresses, dates and paths."""
    singles = [(i, token) for i, token in vocabulary.text_tokens() if len(token) == 1 and not token.isalnum()]
    singles.sort(key=lambda pair: (_SEPARATORS.find(pair[1]) % 256, pair[0]))
    return np.array([i for i, _ in singles], dtype=np.int64)


def _first(order: NDArray[np.int64], legal: NDArray[np.bool_], count: int) -> list[int]:
    chosen: list[int] = []
    for start in range(0, len(order), _CHUNK):
        part = order[start : start + _CHUNK]
        chosen += part[legal[part]][: count - len(chosen)].tolist()
        if len(chosen) == count:
            break
    return chosen


def _closing_key(token: bytes, first: bytes) -> tuple[int, int]:
    """How much a token looks like an end: single closing signs (`first` before the others), ..., what opens last.

    Among what neither opens nor closes the longest come first: where no end is legal, they reach one soonest.
    """
    num_opening = len(token) - len(token.translate(None, _OPENING))
    num_closing = len(token) - len(token.translate(None, _CLOSING))
    if len(token) == 1 and token in first:
        return 0, first.index(token)
    if token in (b"{}", b"[]") or (len(token) == 1 and token in b"123456789"):
        return 1, len(token)
    if num_opening:
        return 7, len(token)
    if num_closing == len(token):
        return 5, (token != b'"') + len(token)
    if token.isspace():
        return 6, len(token)
    if token[0] in _CLOSING:
        return 4, len(token)
    return (3 if len(token.translate(None, b",;:")) < len(token) else 2), -len(token)
