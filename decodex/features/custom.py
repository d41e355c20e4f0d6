"""Custom logits processors over the rows of a step. Pipeline step 4. What goes wrong in one is its request's error."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from decodex.batch import Rows
from decodex.errors import describe_error
from decodex.params import SamplingParams
from decodex.processors import LogitsProcessor, RowView, bind, is_pure, run

__all__ = ["CustomProcessors"]


class CustomProcessors:
    """The engine's processors in order, then each request's own. A failed row is NaN; rows.errors has the reason."""

    def __init__(self, processors: Sequence[object] = ()) -> None:
        self.engine = [bind(processor) for processor in processors]
        self._slots: set[int] = set()

    def check(self, params: SamplingParams) -> None:
        """See Feature."""

    def add(self, slot: int, params: SamplingParams) -> bool:
        """See Feature. The processors themselves are the sequence's (`rows.sequences`)."""
        if params.logits_processors:
            self._slots.add(slot)
        return bool(params.logits_processors) or bool(self.engine)

    def apply(self, logits: Tensor, rows: Rows) -> None:
        """See Feature."""
        for index, processor in enumerate(self.engine):
            name = f"engine logits_processors[{index}]"
            if is_pure(processor):
                _run_on(processor, name, logits, rows, list(range(len(rows.slots_host))))
                continue
            for row_ids in _by_slot(rows, set(rows.slots_host)):
                processors = rows.sequences[row_ids[0]].processors
                own = None if processors is None else processors.engine[index]
                _run_on(processor if own is None else own, name, logits, rows, row_ids)
        if not self._slots:
            return
        for row_ids in _by_slot(rows, self._slots):
            processors = rows.sequences[row_ids[0]].processors
            for index, processor in enumerate(processors.own if processors is not None else ()):
                _run_on(processor, f"logits_processors[{index}]", logits, rows, row_ids)

    def remove(self, slot: int) -> None:
        """See Feature."""
        self._slots.discard(slot)


def _by_slot(rows: Rows, slots: set[int]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for row, slot in enumerate(rows.slots_host):
        if slot in slots:
            groups.setdefault(slot, []).append(row)
    return list(groups.values())


def _view(rows: Rows, row: int) -> RowView:
    seq, ancestors = rows.sequences[row], rows.ancestors[row]
    return RowView(
        slot=rows.slots_host[row],
        position=len(seq.token_ids) + len(ancestors),
        token_ids=tuple(seq.token_ids),
        num_prompt_tokens=seq.num_prompt_tokens,
        ancestors=ancestors,
    )


def _run_on(processor: LogitsProcessor, name: str, logits: Tensor, rows: Rows, row_ids: list[int]) -> None:
    """Run a processor on some rows; where it fails on several, on each alone, so that only the guilty one pays."""
    row_ids = [row for row in row_ids if row not in rows.errors]
    if not row_ids:
        return
    index = torch.tensor(row_ids, device=logits.device)
    dtype = torch.get_default_dtype()
    try:
        after = run(processor, logits[index], [_view(rows, row) for row in row_ids])
        top = after.amax(1)  # NaN wins
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit and CancelledError: a processor ends its own request only
        if len(row_ids) > 1:
            for row in row_ids:
                _run_on(processor, name, logits, rows, [row])
            return
        rows.errors[row_ids[0]] = f"{name} failed: {describe_error(error)}"
        logits[row_ids[0]] = torch.nan
        return
    finally:
        torch.set_default_dtype(dtype)
    for place in torch.nonzero(torch.isnan(top) | torch.isposinf(top)).flatten().tolist():
        top_before = logits[row_ids[place]].amax()
        if not (torch.isnan(top_before) or torch.isposinf(top_before)):
            rows.errors[row_ids[place]] = f"{name} returned NaN or +inf"
    logits[index] = after
