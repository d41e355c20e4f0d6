"""Drafters over the fake model: a draft model, and a head that is checked against what the target left behind.

Their KV is in the engine's own paged layers, rebuilt and asserted on as the fake model's: a wrong slot, position or row
fails. Their logits are the target's, disturbed, so that some drafts are accepted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from fakes import FakeModel, hash_logits

from decodex.heads import draft_forward
from decodex.models.interface import ForwardOutput
from decodex.spec.draft_model import DraftModel
from decodex.spec.head_proposer import HeadProposer

TAPS = {"draft_model": (), "eagle": (), "eagle3": (0, 2, 3), "mtp": ()}


class TappedModel(FakeModel):
    """Hidden states [T, 2] are a row's token and position; those of a layer are (layer + 1) times as large."""

    num_layers = 4
    hidden_size = 2

    @torch.inference_mode()
    def forward(self, batch, kv, taps=(), wants_hidden=False):
        logits = super().forward(batch, kv).logits
        states = torch.stack([batch.token_ids.float(), batch.positions.float()], 1)
        return ForwardOutput(logits, states if wants_hidden else None, {tap: states * (tap + 1) for tap in taps})


class ToyHead:
    """Entry i is token i + 1 beside the hidden state of token i; it must be that of the entry before."""

    shift = 1
    kv_layers = [(1, 2, 1)]  # noqa: RUF012
    token_map = None
    max_position = 512

    def __init__(self, taps: tuple[int, ...], logits_of: Callable) -> None:
        self.taps, self.needs_hidden = taps, not taps
        self._logits_of = logits_of

    def inputs(self, step, rows):
        if not self.taps:
            return step.hidden[rows]
        assert sorted(step.taps) == sorted(self.taps)
        return torch.stack([step.taps[tap][rows] / (tap + 1) for tap in self.taps]).mean(0)

    def forward(self, token_ids, hidden, entries, step):
        assert len(set(entries.slots.tolist())) == len(entries.slots), "two entries write one slot"
        assert entries.positions.tolist() == hidden[:, 1].round().int().tolist(), "another row's hidden state"
        step.kv_k[0][entries.slots, 0] = torch.stack([token_ids.float(), hidden[:, 0].round()], 1)
        step.kv_v[0][entries.slots, 0, 0] = entries.positions.float()
        is_all = entries.wanted is None
        rows = entries.rows if is_all else entries.wanted_rows
        wanted = torch.arange(len(token_ids)) if is_all else entries.wanted
        logits = [
            self._logits_of(self._prefix(rows, at, step, int(entries.positions[w]))) for at, w in enumerate(wanted)
        ]
        carried = torch.stack([token_ids[wanted].float(), entries.positions[wanted].float() + 1], 1)
        return carried, torch.from_numpy(np.array(logits, dtype=np.float32))

    def _prefix(self, rows, row, step, position):
        length, size = int(rows.ctx_lens[row]), rows.block_size
        table = rows.block_tables[int(rows.row_slot[row])].tolist()
        slots = [table[p // size] * size + p % size for p in range(length)]
        slots += rows.anc_slots[int(rows.anc_cu[row]) : int(rows.anc_cu[row + 1])].tolist()
        positions = step.kv_v[0][slots, 0, 0].int().tolist()
        assert positions == list(range(position + 1)), f"an entry at {position} reads positions {positions}"
        tokens, before = step.kv_k[0][slots, 0].int().T.tolist()
        assert before[1:] == tokens[:-1], f"tokens {tokens} beside the hidden states of {before}"
        return [before[0], *tokens]


@functools.cache
def _noise(prefix: tuple[int, ...], vocab_size: int) -> np.ndarray:
    return 0.4 * hash_logits([-1, *prefix], vocab_size)


def toy_drafter(method: str, vocab_size: int, logits_of: Callable | None = None) -> HeadProposer:
    """A proposer of a method with weights, for a `TappedModel` with these logits."""
    target = logits_of or (lambda prefix: hash_logits(prefix, vocab_size))

    def disturbed(prefix):
        return target(prefix) + _noise(tuple(prefix), vocab_size)

    if method == "draft_model":
        forward = draft_forward(FakeModel(vocab_size, logits_of=disturbed))
        return HeadProposer(method, DraftModel(forward, [(1, 1, 1)], 512))
    return HeadProposer(method, ToyHead(TAPS[method], disturbed))
