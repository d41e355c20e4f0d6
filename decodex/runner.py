"""ModelRunner: turns a plan into tensors, runs the model over the paged KV, and moves KV where a plan says so."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from decodex.batch import PromptRows, Rows, StepBatch, StepOutput
from decodex.kernels.attention import RowContexts
from decodex.kv_cache import KVCache
from decodex.models.interface import CausalLM, ForwardBatch, ForwardOutput
from decodex.request import Sequence
from decodex.scheduler import Plan, PlanEntry
from decodex.table import RequestTable

__all__ = ["ModelRunner"]


class ModelRunner:
    """Owns the KV tensors; the model's weights belong to the model."""

    def __init__(self, model: CausalLM, kv: KVCache, table: RequestTable, device: torch.device) -> None:
        self.kv = kv
        self._model = model
        self._table = table
        self._device = device

    def stage(self, plan: Plan) -> StepBatch:
        """Build the step's tensors: token rows, then for each sampled entry its draft rows."""
        self.kv.copy_blocks(plan.block_copies)
        entries = list(plan.entries.values())
        stage = _Stage(self.kv.block_size)
        for entry in entries:
            stage.add(entry)
        return stage.finish(entries, self._table, self._device)

    def forward(self, batch: StepBatch, taps: tuple[int, ...] = (), wants_hidden: bool = False) -> ForwardOutput:
        """Logits of the step's L rows, and behind them of its prompt rows, [L + P, V] fp32; what else is asked for."""
        return self._model.forward(batch.forward, self.kv, taps, wants_hidden)

    def compact(self, batch: StepBatch, output: StepOutput) -> None:
        """Move the KV of accepted tree nodes to their logical places (a chain's are there already)."""
        source: list[int] = []
        target: list[int] = []
        for entry, accepted in zip(batch.sampled, output.accepted, strict=True):
            root = entry.start + entry.num_tokens
            for place, node in enumerate(accepted):
                if place != node:
                    source.append(_slot(entry, root + node, self.kv.block_size))
                    target.append(_slot(entry, root + place, self.kv.block_size))
        if source:
            self.kv.copy_slots(torch.tensor(source, device=self._device), torch.tensor(target, device=self._device))


def _slot(entry: PlanEntry, place: int, block_size: int) -> int:
    return entry.seq.block_ids[place // block_size] * block_size + place % block_size


class _Stage:
    """Collects one step's rows as host lists."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.token_ids: list[int] = []
        self.positions: list[int] = []
        self.kv_slots: list[int] = []
        self.row_slot: list[int] = []
        self.ctx_lens: list[int] = []
        self.anc_cu: list[int] = [0]
        self.anc_slots: list[int] = []
        self.logits_rows: list[int] = []
        self.row_slots: list[int] = []
        self.row_positions: list[int] = []
        self.num_output: list[int] = []
        self.ancestors: list[tuple[int, ...]] = []
        self.sampled: list[PlanEntry] = []
        self.row_starts: list[int] = []
        self.first_rows: list[int] = []
        self.sequences: list[Sequence] = []
        self.prompt_rows: list[PromptRows] = []
        self.prompt_logits_rows: list[int] = []

    def add(self, entry: PlanEntry) -> None:
        seq, end = entry.seq, entry.start + entry.num_tokens
        self.first_rows.append(len(self.token_ids))
        self.token_ids += seq.token_ids[entry.start : end]
        self.positions += range(entry.start, end)
        self.kv_slots += (_slot(entry, place, self._block_size) for place in range(entry.start, end))
        self.row_slot += [seq.slot] * entry.num_tokens
        self.ctx_lens += range(entry.start + 1, end + 1)
        self.anc_cu += [len(self.anc_slots)] * entry.num_tokens
        if (wanted := seq.next_prompt_logprob) is not None:
            self._add_prompt_rows(entry, wanted)
        if entry.is_sampled:
            self.row_starts.append(len(self.logits_rows))
            self.sampled.append(entry)
            self._add_logits_row(entry, end, ())
            if entry.draft is not None:
                self._add_draft(entry, end)

    def _add_prompt_rows(self, entry: PlanEntry, wanted: int) -> None:
        """Rows that predict the prompt's tokens from position `wanted` on, as far as this step goes."""
        first = max(entry.start + 1, wanted)
        last = min(entry.start + entry.num_tokens, entry.seq.num_prompt_tokens - 1)
        if first <= last:
            base = len(self.token_ids) - entry.num_tokens - entry.start - 1
            self.prompt_rows.append(PromptRows(entry, first, last + 1 - first))
            self.prompt_logits_rows += range(base + first, base + last + 1)

    def _add_logits_row(self, entry: PlanEntry, position: int, ancestors: tuple[int, ...]) -> None:
        self.logits_rows.append(len(self.token_ids) - 1)
        self.row_slots.append(entry.seq.slot)
        self.row_positions.append(position)
        self.num_output.append(position - entry.seq.num_prompt_tokens)
        self.ancestors.append(ancestors)
        self.sequences.append(entry.seq)

    def _add_draft(self, entry: PlanEntry, end: int) -> None:
        draft = entry.draft
        assert draft is not None
        for node, (token, path) in enumerate(zip(draft.token_ids, draft.paths, strict=True)):
            position = end + len(path) - 1
            self.token_ids.append(token)
            self.positions.append(position)
            self.kv_slots.append(_slot(entry, end + node, self._block_size))
            self.row_slot.append(entry.seq.slot)
            if draft.is_chain:
                self.ctx_lens.append(position + 1)
            else:
                self.ctx_lens.append(end)
                self.anc_slots += (_slot(entry, end + other, self._block_size) for other in path)
            self.anc_cu.append(len(self.anc_slots))
            self._add_logits_row(entry, position + 1, tuple(draft.token_ids[other] for other in path))

    def finish(self, entries: list[PlanEntry], table: RequestTable, device: torch.device) -> StepBatch:
        def to_device(values: list[int], dtype: type) -> Tensor:
            return torch.from_numpy(np.array(values, dtype=dtype)).to(device)

        contexts = RowContexts(
            block_tables=table.block_tables.to(device),
            row_slot=to_device(self.row_slot, np.int32),
            ctx_lens=to_device(self.ctx_lens, np.int32),
            anc_cu=to_device(self.anc_cu, np.int32),
            anc_slots=to_device(self.anc_slots, np.int64),
            block_size=self._block_size,
        )
        forward = ForwardBatch(
            token_ids=to_device(self.token_ids, np.int64),
            positions=to_device(self.positions, np.int32),
            slot_mapping=to_device(self.kv_slots, np.int64),
            rows=contexts,
            logits_rows=to_device(self.logits_rows + self.prompt_logits_rows, np.int64),
        )
        rows = Rows(
            slots=torch.tensor(self.row_slots, dtype=torch.int64),
            positions=torch.tensor(self.row_positions, dtype=torch.int64),
            slots_host=self.row_slots,
            num_output_host=self.num_output,
            ancestors=self.ancestors,
            sequences=self.sequences,
        )
        return StepBatch(entries, self.sampled, forward, rows, self.row_starts, self.first_rows, self.prompt_rows)
