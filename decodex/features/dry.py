"""DRY: the longer an end of the text has occurred before, the less likely is what followed it then. Pipeline step 3.

The rule of text-generation-webui and llama.cpp, over prompt and output. The length of every earlier occurrence is kept
and moves on with each token in one vectorized pass; a long beginning is read by the Z-algorithm. Both are linear.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from decodex.batch import Rows
from decodex.features.feature import RowLists
from decodex.features.vocabulary import Vocabulary
from decodex.features.word_automaton import WordAutomaton
from decodex.kernels.penalties import add_bias_
from decodex.params import SamplingParams

__all__ = ["Dry", "Repetitions", "z_lengths"]

Ints = np.ndarray[Any, np.dtype[np.int32]]
FLOAT_MAX_LOG = 88.7228391  # log of the largest fp32
LARGEST_PENALTY = 3e38


def z_lengths(tokens: Sequence[int]) -> list[int]:
    """For each j >= 1 how long tokens[j:] and tokens agree from their beginnings; [0] is 0 (Gusfield's Z-algorithm)."""
    size = len(tokens)
    z, left, right = [0] * size, 0, 0
    for j in range(1, size):
        length = min(right - j, z[j - left]) if j < right else 0
        while j + length < size and tokens[length] == tokens[j + length]:
            length += 1
        z[j] = length
        if j + length > right:
            left, right = j, j + length
    return z


class Repetitions:
    """lengths[i]: how many tokens up to i equal the last tokens, not reaching across a breaker."""

    def __init__(self, breakers: WordAutomaton | None) -> None:
        self._breakers = breakers
        self._state = 0  # of the breakers' automaton
        self._limit = 0  # tokens since the last breaker
        self.tokens: Ints = np.empty(0, dtype=np.int32)
        self.lengths: Ints = np.empty(0, dtype=np.int32)  # of all tokens but the last

    def copy(self) -> Repetitions:
        """A copy that goes its own way (arrays are replaced, never changed)."""
        other = Repetitions(self._breakers)
        other._state, other._limit = self._state, self._limit
        other.tokens, other.lengths = self.tokens, self.lengths
        return other

    def catch_up(self, token_ids: Sequence[int]) -> None:
        """Read the tokens that have been committed since the last call."""
        new = token_ids[len(self.tokens) :]
        if len(new) <= 16:
            for token in new:
                self.push(token)
            return
        for token in new:
            self._limit = 0 if self._is_break(token) else self._limit + 1
        self.tokens = np.asarray(token_ids, dtype=np.int32)
        lengths = z_lengths(token_ids[::-1])[:0:-1]
        self.lengths = np.minimum(np.array(lengths, dtype=np.int32), self._limit).astype(np.int32)

    def push(self, token: int) -> None:
        """One more token."""
        lengths = np.zeros(len(self.tokens), dtype=np.int32)
        if self._is_break(token):
            self._limit = 0
        else:
            self._limit += 1
            lengths[1:] = self.lengths
            lengths += 1
            lengths[self.tokens != token] = 0
        self.lengths = lengths
        self.tokens = np.append(self.tokens, np.int32(token))

    def _is_break(self, token: int) -> bool:
        if self._breakers is None:
            return False
        self._state, hit = self._breakers.advance(self._state, token)
        return hit

    def followers(self, at_least: int) -> tuple[Ints, Ints]:
        """Tokens that followed a repetition of at least that length, and the longest such length of each."""
        places = np.flatnonzero(self.lengths >= at_least)
        ids, lengths = self.tokens[places + 1], self.lengths[places]
        order = np.lexsort((lengths, ids))
        is_longest = np.append(ids[order][1:] != ids[order][:-1], True)[: len(order)]
        return ids[order][is_longest], lengths[order][is_longest]


class Dry:
    """Off where dry_multiplier is."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._slots: dict[int, tuple[SamplingParams, WordAutomaton | None, Repetitions]] = {}

    def check(self, params: SamplingParams) -> None:
        """See Feature."""
        if params.dry_multiplier is not None:
            self._breakers(params)

    def add(self, slot: int, params: SamplingParams) -> bool:
        """See Feature."""
        if params.dry_multiplier is None:
            return False
        breakers = self._breakers(params)
        self._slots[slot] = (params, breakers, Repetitions(breakers))
        return True

    def apply(self, logits: Tensor, rows: Rows) -> None:
        """See Feature."""
        if not self._slots:
            return
        lists = RowLists()
        for row, slot in enumerate(rows.slots_host):
            entry = self._slots.get(slot)
            if entry is None:
                continue
            params, breakers, repetitions = entry
            repetitions.catch_up(rows.sequences[row].token_ids)
            if rows.ancestors[row]:
                repetitions = repetitions.copy()
                for token in rows.ancestors[row]:
                    repetitions.push(token)
            ids, lengths = repetitions.followers(params.dry_allowed_length)
            if breakers is not None:
                is_free = breakers.words_within[ids]
                ids, lengths = ids[~is_free], lengths[~is_free]
            if len(ids):
                lists.add(row, ids, -_penalty(params, lengths))
        if lists:
            device = logits.device
            values = lists.values(np.float32, device)
            add_bias_(logits, lists.cu_of_all(len(logits), device), lists.token_ids(device), values)

    def remove(self, slot: int) -> None:
        """See Feature."""
        self._slots.pop(slot, None)

    def _breakers(self, params: SamplingParams) -> WordAutomaton | None:
        if not params.dry_sequence_breakers:
            return None
        return self._vocabulary.automaton(params.dry_sequence_breakers, False, "dry_sequence_breakers")


def _penalty(params: SamplingParams, lengths: Ints) -> np.ndarray[Any, np.dtype[np.float64]]:
    assert params.dry_multiplier is not None
    exponent = lengths.astype(np.float64) - params.dry_allowed_length
    if params.dry_base > 1.000001:  # llama.cpp's bound: the power stays a finite fp32
        exponent = np.minimum(exponent, math.floor(FLOAT_MAX_LOG / math.log(params.dry_base)))
    penalty = params.dry_multiplier * np.power(params.dry_base, exponent)
    return np.minimum(penalty, LARGEST_PENALTY)
