"""max_thinking_tokens: once the tokens between <think> and </think> are spent, the end marker is forced. Step 2.

Where a row stands is read from the bytes of prompt and output, so markers may be one token or several; a block that the
prompt has opened counts from the first output token. All blocks of an output share the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from decodex.batch import Rows
from decodex.errors import RequestError
from decodex.features.feature import RowLists
from decodex.features.vocabulary import Vocabulary
from decodex.features.word_automaton import WordAutomaton
from decodex.kernels.penalties import keep_only_
from decodex.params import SamplingParams

__all__ = ["END_MARKER", "START_MARKER", "ThinkingBudget"]

START_MARKER = "<think>"
END_MARKER = "</think>"
FIELD = "max_thinking_tokens"


@dataclass
class _Progress:
    """Where a sequence stands: state of the marker's automaton that is looked for now, tokens spent."""

    is_inside: bool = False
    state: int = 0
    num_spent: int = 0
    num_seen: int = 0


class ThinkingBudget:
    """Off where max_thinking_tokens is None."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._forced: dict[int, int] | None = None
        self._markers: dict[bool, WordAutomaton] = {}  # by whether a block is open
        self._slots: dict[int, tuple[int, _Progress]] = {}

    def check(self, params: SamplingParams) -> None:
        """See Feature."""
        if params.max_thinking_tokens is None:
            return
        needed, allowed = self._canonical(), params.allowed_token_ids
        if allowed is not None and not needed <= set(allowed):
            hint = f"{FIELD} forces the tokens {sorted(needed)} of {END_MARKER}"
            raise RequestError("allowed_token_ids", list(allowed), "the end marker's tokens among them", hint)

    def add(self, slot: int, params: SamplingParams) -> bool:
        """See Feature."""
        if params.max_thinking_tokens is None:
            return False
        for is_open, marker in ((False, START_MARKER), (True, END_MARKER)):
            self._markers[is_open] = self._vocabulary.automaton((marker,), False, FIELD)
        self._slots[slot] = (params.max_thinking_tokens, _Progress())
        return True

    def apply(self, logits: Tensor, rows: Rows) -> None:
        """See Feature."""
        if not self._slots:
            return
        forced, lists = self._forced_tokens(), RowLists()
        for row, slot in enumerate(rows.slots_host):
            entry = self._slots.get(slot)
            if entry is None:
                continue
            budget, progress = entry
            seq = rows.sequences[row]
            for token in seq.token_ids[progress.num_seen :]:
                self._push(progress, token, progress.num_seen >= seq.num_prompt_tokens)
            if rows.ancestors[row]:
                progress = replace(progress)
                for token in rows.ancestors[row]:
                    self._push(progress, token, True)
            if progress.is_inside and progress.num_spent >= budget:
                lists.add(row, [forced[progress.state]], 0)
        if lists:
            device = logits.device
            row_ids = torch.tensor(lists.row_ids, device=device)
            keep_only_(logits, row_ids, lists.cu_of_listed(device), lists.token_ids(device))

    def remove(self, slot: int) -> None:
        """See Feature."""
        self._slots.pop(slot, None)

    def _push(self, progress: _Progress, token: int, is_output: bool) -> None:
        progress.state, is_met = self._markers[progress.is_inside].advance(progress.state, token)
        progress.num_spent += progress.is_inside and is_output and not is_met
        progress.num_seen += 1
        if is_met:
            progress.is_inside = not progress.is_inside
            progress.state = 0

    def _canonical(self) -> set[int]:
        forced, at, path = self._forced_tokens(), 0, set[int]()
        table = self._vocabulary.token_bytes(FIELD)
        while at < len(END_MARKER):
            path.add(forced[at])
            at += len(table.tokens[forced[at]])
        return path

    def _forced_tokens(self) -> dict[int, int]:
        """The token to force where the text ends in the end marker's first k bytes, for each k: the tokenizer's own
        choice along its spelling of the whole marker, elsewhere what takes the fewest tokens to the end, or a new
        beginning where no token goes on."""
        if self._forced is None:
            table, marker = self._vocabulary.token_bytes(FIELD), END_MARKER.encode()
            forced = _shortest_spelling(marker, table.tokens)
            if 0 not in forced:
                raise RequestError(FIELD, "a budget", f"a vocabulary that can spell {END_MARKER}")
            ids = self._vocabulary.tokenizer.encode(END_MARKER, False)
            if all(0 <= i < len(table) for i in ids) and b"".join(table.tokens[i] for i in ids) == marker:
                at = 0
                for token in ids:
                    forced[at] = token
                    at += len(table.tokens[token])
            self._forced = {at: forced.get(at, forced[0]) for at in range(len(marker))}
        return self._forced


def _shortest_spelling(text: bytes, tokens: Sequence[bytes]) -> dict[int, int]:
    """For each place of `text` from which tokens can spell the rest: the first token of the shortest such spelling."""
    parts: dict[bytes, int] = {}
    for token, part in enumerate(tokens):
        if part and part in text:
            parts.setdefault(part, token)
    cost, first = {len(text): 0}, dict[int, int]()
    for at in range(len(text) - 1, -1, -1):
        ways = [
            (1 + cost[at + len(part)], -len(part), token)
            for part, token in parts.items()
            if text.startswith(part, at) and at + len(part) in cost
        ]
        if ways:
            cost[at], _, first[at] = min(ways)
    return first
