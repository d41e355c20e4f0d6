"""A byte automaton over a set of words (Aho and Corasick, 1975), walked by whole tokens.

Owned by the feature that built it and shared by every request with the same words; read-only but for its cache.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from decodex.token_bytes import TokenBytes

__all__ = ["MAX_WORD_BYTES", "WordAutomaton"]

MAX_WORD_BYTES = 8192  # of all words together: one state and 1 KB of tables each, numbered in int16
MAX_MASKS = 256  # cached; one is V / 8 bytes


class WordAutomaton:
    """State 0 is the beginning of a text; a state is the longest end of the text that begins a word."""

    def __init__(self, words: Sequence[bytes], table: TokenBytes, skip_special_tokens: bool) -> None:
        """`words`: not empty, at most MAX_WORD_BYTES together; `skip_special_tokens`: those add nothing to the text."""
        self._next, accepts = _build(words)
        self._accepts: list[bool] = accepts.tolist()
        self._table = table
        self._skip = skip_special_tokens
        absorbing = self._next.copy()
        absorbing[accepts] = np.flatnonzero(accepts)[:, None]  # a walk that has met a word stays there
        self._absorbing = absorbing
        self._is_accepting = accepts
        self._masks: OrderedDict[int, Tensor] = OrderedDict()

    def advance(self, state: int, token_id: int) -> tuple[int, bool]:
        """The state after a token, and whether a word ended within it."""
        hit = False
        for byte in self._table.shown(token_id, self._skip):
            state = int(self._next[state, byte])
            hit = hit or self._accepts[state]
        return state, hit

    def completes(self, state: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether a word would end within each token after `state`, [V]."""
        table = self._table
        states = np.full(len(table), state, dtype=np.int16)
        for column in table.columns:
            states[: len(column)] = self._absorbing[states[: len(column)], column]
        completes = np.zeros(len(table), dtype=np.bool_)
        completes[table.order] = self._is_accepting[states]
        if self._skip and table.hidden_ids:
            completes[[token for token in table.hidden_ids if token < len(table)]] = False
        return completes

    @cached_property
    def words_within(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether each token contains a word by itself, [V]."""
        return self.completes(0)

    def mask(self, state: int) -> Tensor:
        """The token bitmask [ceil(V / 32)] int32 after `state`: a set bit is a token that completes no word."""
        mask = self._masks.get(state)
        if mask is None:
            allowed = np.zeros(-(-len(self._table) // 32) * 32, dtype=np.bool_)
            allowed[: len(self._table)] = ~self.completes(state)
            mask = torch.from_numpy(np.packbits(allowed, bitorder="little").view(np.int32).copy())
            self._masks[state] = mask
            if len(self._masks) > MAX_MASKS:
                self._masks.popitem(last=False)
        else:
            self._masks.move_to_end(state)
        return mask


def _build(
    words: Sequence[bytes],
) -> tuple[np.ndarray[Any, np.dtype[np.int16]], np.ndarray[Any, np.dtype[np.bool_]]]:
    """Transitions [S, 256] and accepting states [S]."""
    children: list[dict[int, int]] = [{}]
    ends: list[bool] = [False]
    for word in words:
        state = 0
        for byte in word:
            if byte not in children[state]:
                children[state][byte] = len(children)
                children.append({})
                ends.append(False)
            state = children[state][byte]
        ends[state] = True
    table = np.zeros((len(children), 256), dtype=np.int16)
    fail = [0] * len(children)
    queue: deque[int] = deque()
    for byte, child in children[0].items():
        table[0, byte] = child
        queue.append(child)
    while queue:  # breadth first: what a state falls back to is complete before it
        state = queue.popleft()
        ends[state] = ends[state] or ends[fail[state]]
        table[state] = table[fail[state]]
        for byte, child in children[state].items():
            fail[child] = int(table[fail[state], byte])
            table[state, byte] = child
            queue.append(child)
    return table, np.array(ends, dtype=np.bool_)
