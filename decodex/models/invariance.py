"""The check at load that a row's result does not depend on the rows beside it, bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor

from decodex.kernels.attention import RowContexts
from decodex.kv_cache import KVCache
from decodex.models.interface import CausalLM, ForwardBatch

__all__ = ["flat_batch", "is_row_invariant"]

_NUM_TOKENS = 6
_NUM_COPIES = 7  # 42 rows: enough for torch to split work between threads


def is_row_invariant(model: CausalLM, device: torch.device) -> bool:
    """Compare six tokens alone, in chunks, one by one, and beside copies of themselves."""
    kv = KVCache(model.kv_spec, num_blocks=_NUM_COPIES, block_size=16, device=device)
    tokens = [(7 * place + 1) % model.vocab_size for place in range(_NUM_TOKENS)]

    def run(start: int, end: int, copies: int) -> Tensor:
        spans = [(copy, tokens[start:end], start) for copy in range(copies)]
        return model.forward(flat_batch(spans, 1, 16, device), kv).logits

    alone = run(0, _NUM_TOKENS, 1)
    together = run(0, _NUM_TOKENS, _NUM_COPIES).view(_NUM_COPIES, _NUM_TOKENS, -1)
    chunks = torch.cat([run(0, 3, 1), run(3, 4, 1), run(4, 5, 1), run(5, 6, 1)])
    return bool((together == alone).all()) and torch.equal(chunks, alone)


def flat_batch(
    spans: list[tuple[int, list[int], int]], blocks_each: int, block_size: int, device: torch.device
) -> ForwardBatch:
    """A batch of plain rows with logits for all: (sequence, token ids, position of the first); sequence s has the
    blocks s * blocks_each and the following ones."""
    ids: list[int] = []
    positions: list[int] = []
    sequences: list[int] = []
    for sequence, tokens, start in spans:
        ids += tokens
        positions += range(start, start + len(tokens))
        sequences += [sequence] * len(tokens)
    num_sequences = max(sequences) + 1
    place = torch.tensor(positions, dtype=torch.int32, device=device)
    row_slot = torch.tensor(sequences, dtype=torch.int32, device=device)
    tables = torch.arange(num_sequences * blocks_each, dtype=torch.int32, device=device)
    rows = RowContexts(
        block_tables=tables.view(num_sequences, blocks_each),
        row_slot=row_slot,
        ctx_lens=place + 1,
        anc_cu=torch.zeros(len(ids) + 1, dtype=torch.int32, device=device),
        anc_slots=torch.zeros(0, dtype=torch.int64, device=device),
        block_size=block_size,
    )
    slots = row_slot.long() * (blocks_each * block_size) + place
    token_ids = torch.tensor(ids, device=device)
    return ForwardBatch(token_ids, place, slots, rows, torch.arange(len(ids), device=device))
