"""The row pipeline: the only code that turns logits into tokens, the same for every row, always in one order.

1 raw logits (and raw log-probabilities), 2 masks, 3 penalties, 4 custom processors, 5 grammar and vocabulary tail,
6 temperature, 7 truncation, 8 arg-max of logit/T + noise. Steps 2-5 are features, in their order; 6-8 are one
kernel. Verification of drafts walks over the rows' tokens: plain decoding is a draft of length 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decodex.batch import StepBatch, StepOutput
from decodex.features.feature import Feature
from decodex.kernels.sampling import SamplingRows, sample_rows, top_logprobs
from decodex.outputs import Logprob
from decodex.spec.verify import coupled_walk
from decodex.table import RequestTable
from decodex.tokenizer import Tokenizer

__all__ = ["Sampler"]


class Sampler:
    """Applies the pipeline to a step's rows and walks the drafts."""

    def __init__(self, table: RequestTable, features: Sequence[Feature], tokenizer: Tokenizer) -> None:
        self._table = table
        self._features = features
        self._tokenizer = tokenizer

    def sample(self, logits: Tensor, batch: StepBatch) -> StepOutput:
        """Tokens for every sampled entry from logits [L, V_model] fp32 (changed in place)."""
        raw = self._raw_rows(logits, batch)
        logits = logits[:, : self._tokenizer.vocab_size]  # the tail beyond the tokenizer is never a token
        for feature in self._features:
            feature.apply(logits, batch.rows)
        tokens = self._choose(logits, batch).tolist()
        return self._walk(tokens, raw, batch)

    def _choose(self, logits: Tensor, batch: StepBatch) -> Tensor:
        """Steps 6 to 8, one kernel for all rows."""
        table, slots, device = self._table, batch.rows.slots, logits.device
        rows = SamplingRows(
            temperature=table.temperature[slots].to(device),
            seeds=table.seeds[slots].to(device),
            positions=batch.rows.positions.to(device),
            top_k=table.top_k[slots].to(device),
            top_p=table.top_p[slots].to(device),
            min_p=table.min_p[slots].to(device),
        )
        return sample_rows(logits, rows)

    def _raw_rows(self, logits: Tensor, batch: StepBatch) -> dict[int, Tensor]:
        """Copies of the raw logits of rows whose slots want log-probabilities (features change logits in place)."""
        wanted = [row for row, slot in enumerate(batch.rows.slots_host) if self._table.num_logprobs[slot] >= 0]
        return {row: logits[row].clone() for row in wanted}

    def _walk(self, tokens: list[int], raw: dict[int, Tensor], batch: StepBatch) -> StepOutput:
        token_ids, accepted, rows = [], [], []
        for entry, start in zip(batch.sampled, batch.row_starts, strict=True):
            emitted, nodes = coupled_walk(tokens[start : start + 1 + entry.num_drafts], entry.draft)
            token_ids.append(emitted)
            accepted.append(nodes)
            rows.append([start, *(start + 1 + node for node in nodes)])
        return StepOutput(token_ids, accepted, self._logprobs(token_ids, rows, raw, batch))

    def _logprobs(
        self, token_ids: list[list[int]], rows: list[list[int]], raw: dict[int, Tensor], batch: StepBatch
    ) -> list[list[dict[int, Logprob]] | None]:
        """Raw log-probabilities of the emitted tokens, in one kernel call for all rows that want them."""
        wanted = [
            (row, token)
            for tokens_of, rows_of in zip(token_ids, rows, strict=True)
            for token, row in zip(tokens_of, rows_of, strict=True)
            if row in raw and token >= 0
        ]
        by_row: dict[int, dict[int, Logprob]] = {}
        if wanted:
            counts = [int(self._table.num_logprobs[batch.rows.slots_host[row]]) for row, _ in wanted]
            logits = torch.stack([raw[row] for row, _ in wanted])
            chosen = torch.tensor([token for _, token in wanted], device=logits.device)
            top = top_logprobs(logits, min(max(counts), self._tokenizer.vocab_size), chosen)
            assert top.ranks is not None
            for (row, _), count, values, ids, rank in zip(
                wanted, counts, top.values.tolist(), top.ids.tolist(), top.ranks.tolist(), strict=True
            ):
                by_row[row] = self._entries(values, ids, rank, count)
        return [
            [by_row.get(row, {}) for row in rows_of] if entry_start in raw else None
            for entry_start, rows_of in zip(batch.row_starts, rows, strict=True)
        ]

    def _entries(self, values: list[float], ids: list[int], rank: int, count: int) -> dict[int, Logprob]:
        entries = {
            token: Logprob(value, place + 1, self._tokenizer.decode([token], False))
            for place, (token, value) in enumerate(zip(ids[:count], values[:count], strict=True))
        }
        entries.setdefault(ids[-1], Logprob(values[-1], rank, self._tokenizer.decode([ids[-1]], False)))
        return entries
