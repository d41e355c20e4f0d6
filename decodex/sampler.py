"""The row pipeline: the only code that turns logits into tokens, the same for every row, always in one order.

1 raw logits (and raw log-probabilities), 2 masks, 3 penalties, 4 custom processors, 5 grammar and vocabulary tail,
6 temperature, 7 truncation, 8 arg-max of logit/T + noise. Steps 2-5 are features, in their order; 6-8 are one
kernel. Verification of drafts walks over the rows' tokens: plain decoding is a draft of length 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from decodex.batch import StepBatch, StepOutput
from decodex.features.feature import Feature, PreparedFeature
from decodex.kernels.sampling import SamplingRows, sample_rows, truncate_
from decodex.logprobs import LogprobReader, Wanted
from decodex.outputs import Logprob
from decodex.params import SamplingParams
from decodex.scheduler import PlanEntry
from decodex.spec.verify import coupled_walk, verify_step
from decodex.table import RequestTable
from decodex.tokenizer import Tokenizer

__all__ = ["Sampler"]

Entries = list[dict[int, Logprob]]


class Sampler:
    """Applies the pipeline to a step's rows and walks the drafts."""

    def __init__(self, table: RequestTable, features: Sequence[Feature], tokenizer: Tokenizer) -> None:
        self._table = table
        self._features = features
        self._prepared = [feature for feature in features if isinstance(feature, PreparedFeature)]
        self._vocab_size = tokenizer.vocab_size
        self._reader = LogprobReader(tokenizer)

    def prepare(self, batch: StepBatch) -> None:
        """Begin what needs no logits (grammar masks), before the forward."""
        for feature in self._prepared:
            feature.prepare(batch.rows)

    def sample(self, logits: Tensor, batch: StepBatch) -> StepOutput:
        """Tokens for every sampled entry from logits [L + P, V_model] fp32 (the first L changed in place)."""
        num_rows = len(batch.rows.slots_host)
        logits = logits[:, : self._vocab_size]  # the tail beyond the tokenizer is never a token
        prompt_logprobs = self._prompt_logprobs(logits[num_rows:], batch)
        logits = logits[:num_rows]
        raw = self._copies(logits, batch, "raw")
        for feature in self._features:
            feature.apply(logits, batch.rows)
        rows = self._table.params.rows(batch.rows.slots, batch.rows.positions, logits.device)
        tokens = sample_rows(logits, rows).tolist()
        processed = self._processed(logits, rows, batch)
        token_ids, accepted, row_ids = self._walk(tokens, logits, rows, batch)
        by_row = self._logprobs(raw, token_ids, row_ids, batch)
        by_row.update(self._logprobs(processed, token_ids, row_ids, batch))
        return StepOutput(
            token_ids=token_ids,
            accepted=accepted,
            logprobs=[
                [by_row.get(row, {}) for row in rows_of] if entry.seq.request.params.logprobs is not None else None
                for entry, rows_of in zip(batch.sampled, row_ids, strict=True)
            ],
            errors=[batch.rows.errors.get(rows_of[-1]) for rows_of in row_ids],
            prompt_logprobs=prompt_logprobs,
        )

    def _walk(
        self, tokens: list[int], logits: Tensor, rows: SamplingRows, batch: StepBatch
    ) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
        """Emitted tokens, accepted nodes and the rows they are from, of each sampled entry."""
        verified = self._verified(logits, rows, batch)
        token_ids, accepted, row_ids = [], [], []
        for entry, start in zip(batch.sampled, batch.row_starts, strict=True):
            of_entry = tokens[start : start + 1 + entry.num_drafts]
            emitted, nodes = verified.get(start) or coupled_walk(of_entry, entry.draft)
            token_ids.append(emitted)
            accepted.append(nodes)
            row_ids.append([start, *(start + 1 + node for node in nodes)])
        return token_ids, accepted, row_ids

    @staticmethod
    def _verified(logits: Tensor, rows: SamplingRows, batch: StepBatch) -> dict[int, tuple[list[int], list[int]]]:
        """Emitted tokens and accepted nodes of the drafts that `rejection` or `block` verifies, by their first row."""
        by_method: dict[str, list[tuple[PlanEntry, int]]] = {}
        for entry, start in zip(batch.sampled, batch.row_starts, strict=True):
            config = entry.seq.request.speculation
            if config is not None and entry.draft is not None and config.verification != "coupled":
                by_method.setdefault(config.verification, []).append((entry, start))
        found: dict[int, tuple[list[int], list[int]]] = {}
        for method, group in by_method.items():
            sizes = [1 + entry.num_drafts for entry, _ in group]
            chosen = torch.tensor([start + row for (_, start), size in zip(group, sizes) for row in range(size)])
            chosen = chosen.to(logits.device)
            laws = torch.softmax(truncate_(logits[chosen], rows.select(chosen)), dim=1)
            walks = verify_step(
                method,
                laws.nan_to_num_(0.0),  # a row without a token has no law
                [0, *itertools.accumulate(sizes)][:-1],
                [entry.draft for entry, _ in group],
                [entry.seq.seed for entry, _ in group],
                [len(entry.seq.token_ids) for entry, _ in group],
            )
            found.update(zip([start for _, start in group], walks, strict=True))
        return found

    @staticmethod
    def _copies(logits: Tensor, batch: StepBatch, mode: str) -> dict[int, Tensor]:
        """Copies of the rows whose requests want log-probabilities of that mode (logits change in place)."""
        rows = [row for row, params in enumerate(_params_of(batch)) if _wants(params, mode)]
        if not rows:
            return {}
        copies = logits[torch.tensor(rows, device=logits.device)]
        return dict(zip(rows, copies, strict=True))

    def _processed(self, logits: Tensor, rows: SamplingRows, batch: StepBatch) -> dict[int, Tensor]:
        copies = self._copies(logits, batch, "processed")
        if not copies:
            return {}
        chosen = rows.select(torch.tensor(list(copies)))
        kept = truncate_(torch.stack(list(copies.values())), chosen)
        return dict(zip(copies, kept, strict=True))

    def _logprobs(
        self, logits: dict[int, Tensor], token_ids: list[list[int]], row_ids: list[list[int]], batch: StepBatch
    ) -> dict[int, dict[int, Logprob]]:
        """Log-probabilities of the emitted tokens by row, in one kernel call for all rows of `logits`."""
        rows, wanted = [], []
        for entry, tokens, rows_of in zip(batch.sampled, token_ids, row_ids, strict=True):
            params = entry.seq.request.params
            for token, row in zip(tokens, rows_of, strict=True):
                if row in logits and token >= 0:
                    rows.append(row)
                    wanted.append(Wanted(token, params.logprobs or 0, tuple(params.logprob_token_ids or ())))
        if not rows:
            return {}
        return dict(zip(rows, self._reader.read(torch.stack([logits[row] for row in rows]), wanted), strict=True))

    def _prompt_logprobs(self, logits: Tensor, batch: StepBatch) -> list[Entries]:
        """Raw log-probabilities of the prompt tokens that this step's prompt rows predict."""
        found, start = [], 0
        for rows in batch.prompt_rows:
            seq = rows.entry.seq
            params = seq.request.params
            wanted = [
                Wanted(token, params.prompt_logprobs or 0, tuple(params.logprob_token_ids or ()))
                for token in seq.token_ids[rows.first : rows.first + rows.num]
            ]
            found.append(self._reader.read(logits[start : start + rows.num], wanted))
            start += rows.num
        return found


def _params_of(batch: StepBatch) -> list[SamplingParams]:
    """The parameters of each row."""
    return [entry.seq.request.params for entry in batch.sampled for _ in range(1 + entry.num_drafts)]


def _wants(params: SamplingParams, mode: str) -> bool:
    return params.logprobs is not None and params.logprobs_mode == mode
