"""Grammar masks: rows of constrained sequences keep the tokens after which the text can still be completed. Step 5.

The masks need no logits, so a worker thread fills them while the model's forward runs; where the forward itself keeps
every core busy they are filled after it.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from decodex.batch import Rows
from decodex.constrained import ConstrainedText
from decodex.grammar.errors import MatcherError
from decodex.grammar.matcher import MaskRow
from decodex.kernels.bitmask import apply_token_bitmask_
from decodex.params import SamplingParams

__all__ = ["GrammarMasks", "MaskTimes"]


@dataclass
class _Masks:
    """The masks of a step's constrained rows."""

    row_ids: list[int]
    words: MaskRow  # [R, num_words]
    errors: dict[int, str] = field(default_factory=dict)  # rows whose backend failed, and how


@dataclass
class MaskTimes:
    """What filling masks has taken."""

    seconds: float = 0.0
    num_rows: int = 0


class GrammarMasks:
    """Off where structured_outputs is None. The matchers are the sequences' (`rows.sequences`)."""

    def __init__(self, is_ahead: bool = True) -> None:
        """`is_ahead`: fill them while the forward runs."""
        self._slots: set[int] = set()
        self._is_ahead = is_ahead
        self._worker: ThreadPoolExecutor | None = None
        self._process = os.getpid()
        self.times = MaskTimes()

    def check(self, params: SamplingParams) -> None:
        """See Feature. The constraint itself is compiled at admission."""

    def add(self, slot: int, params: SamplingParams) -> bool:
        """See Feature."""
        if params.structured_outputs is None:
            return False
        self._slots.add(slot)
        return True

    def prepare(self, rows: Rows) -> None:
        """See PreparedFeature."""
        if self._slots and self._is_ahead and os.getpid() == self._process:
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, thread_name_prefix="decodex-masks")
            rows.begun[self] = self._worker.submit(self._fill, rows)

    def apply(self, logits: Tensor, rows: Rows) -> None:
        """See Feature."""
        if not self._slots:
            return
        begun: Future[_Masks] | None = rows.begun.pop(self, None)
        masks = self._fill(rows) if begun is None else begun.result()
        for row, message in masks.errors.items():
            rows.errors.setdefault(row, message)
        if masks.row_ids:
            device = logits.device
            words = torch.from_numpy(masks.words).to(device)
            apply_token_bitmask_(logits, words, torch.tensor(masks.row_ids, device=device))

    def remove(self, slot: int) -> None:
        """See Feature."""
        self._slots.discard(slot)

    def _fill(self, rows: Rows) -> _Masks:
        start = time.perf_counter()
        masks = _fill(rows, self._slots)
        self.times.seconds += time.perf_counter() - start
        self.times.num_rows += len(masks.row_ids)
        return masks


def _fill(rows: Rows, slots: set[int]) -> _Masks:
    """The masks of the rows in `slots`, sequence after sequence."""
    by_slot: dict[int, list[int]] = {}
    for row, slot in enumerate(rows.slots_host):
        if slot in slots:
            by_slot.setdefault(slot, []).append(row)
    texts = {slot: rows.sequences[row_ids[0]].constrained for slot, row_ids in by_slot.items()}
    num_words = next((text.grammar.vocabulary.num_words for text in texts.values() if text is not None), 0)
    row_ids = [row for of_slot in by_slot.values() for row in of_slot]
    masks = _Masks(row_ids, np.zeros((len(row_ids), num_words), dtype=np.int32))
    start = 0
    for slot, of_slot in by_slot.items():
        text = texts[slot]
        assert text is not None, f"slot {slot} is constrained and has no grammar"
        words = masks.words[start : start + len(of_slot)]
        start += len(of_slot)
        error = _fill_slot(text, rows, of_slot, words)
        if error is not None:
            words[:] = 0
            masks.errors.update(dict.fromkeys(of_slot, error))
    return masks


def _fill_slot(text: ConstrainedText, rows: Rows, row_ids: list[int], words: MaskRow) -> str | None:
    """Fill the masks of one sequence's rows; what went wrong in its backend, or None."""
    try:
        text.fill([rows.ancestors[row] for row in row_ids], words)
    except MatcherError as error:
        return f"the grammar's backend failed: {error}"
    return None
