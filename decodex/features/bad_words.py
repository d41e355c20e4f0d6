"""bad_words: texts that the output never contains, under any tokenization and across tokens. Pipeline step 2.

A substring rule over the output's bytes: case counts, "ass" also bans "class", and a word that begins in the prompt
is not looked for. One automaton for each set of words, shared by the requests that use it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from decodex.batch import Rows
from decodex.features.vocabulary import Vocabulary
from decodex.features.word_automaton import WordAutomaton
from decodex.kernels.bitmask import apply_token_bitmask_
from decodex.params import SamplingParams

__all__ = ["BadWords"]


@dataclass
class _SlotState:
    automaton: WordAutomaton
    state: int = 0  # after the committed output
    num_seen: int = 0  # output tokens


class BadWords:
    """Bans each token that would complete a word, given the bytes of the row's output."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._slots: dict[int, _SlotState] = {}

    def check(self, params: SamplingParams) -> None:
        """See Feature. Builds the automaton."""
        if params.bad_words:
            self._vocabulary.automaton(params.bad_words, params.skip_special_tokens, "bad_words")

    def add(self, slot: int, params: SamplingParams) -> bool:
        """See Feature."""
        if not params.bad_words:
            return False
        automaton = self._vocabulary.automaton(params.bad_words, params.skip_special_tokens, "bad_words")
        self._slots[slot] = _SlotState(automaton)
        return True

    def apply(self, logits: Tensor, rows: Rows) -> None:
        """See Feature."""
        if not self._slots:
            return
        row_ids, masks = [], []
        for row, slot in enumerate(rows.slots_host):
            entry = self._slots.get(slot)
            if entry is None:
                continue
            seq = rows.sequences[row]
            for token in seq.token_ids[seq.num_prompt_tokens + entry.num_seen :]:
                entry.state, _ = entry.automaton.advance(entry.state, token)
                entry.num_seen += 1
            state = entry.state
            for token in rows.ancestors[row]:
                state, _ = entry.automaton.advance(state, token)
            row_ids.append(row)
            masks.append(entry.automaton.mask(state))
        if row_ids:
            device = logits.device
            apply_token_bitmask_(logits, torch.stack(masks).to(device), torch.tensor(row_ids, device=device))

    def remove(self, slot: int) -> None:
        """See Feature."""
        self._slots.pop(slot, None)
