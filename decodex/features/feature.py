"""The one contract of a feature (bias, bans, penalties, grammar, custom processor...), and lists for its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from decodex.batch import Rows
from decodex.params import SamplingParams

__all__ = ["Feature", "PreparedFeature", "RowLists"]


class Feature(Protocol):
    """Per-slot state plus an in-place change of logits rows. No row using it = no work.

    State is a fold over the slot's committed tokens that `apply` catches up with, so that preemption and slot reuse
    restore it; what a row's ancestors add is never kept.
    """

    def check(self, params: SamplingParams) -> None:
        """Refuse parameters that this model can't honour with a RequestError; any thread, before the slot is known."""
        ...

    def add(self, slot: int, params: SamplingParams) -> bool:
        """Take a slot's parameters; returns whether the slot uses the feature."""
        ...

    def apply(self, logits: Tensor, rows: Rows) -> None:
        """Change logits [L, V] fp32 in place, each row by its own slot, position and ancestors alone."""
        ...

    def remove(self, slot: int) -> None:
        """Forget a slot."""
        ...


@runtime_checkable
class PreparedFeature(Feature, Protocol):
    """A feature with work that needs no logits, so that it can be done while the forward runs."""

    def prepare(self, rows: Rows) -> None:
        """Begin that work for a step's rows and leave it in `rows.begun[self]` for `apply`. Called before the forward;
        without it, `apply` does all."""
        ...


class RowLists:
    """Ragged lists of token ids with one number each, collected row by row for `kernels/penalties.py`."""

    def __init__(self) -> None:
        self.row_ids: list[int] = []  # rows that have a list, ascending
        self._token_ids: list[np.ndarray[Any, Any]] = []
        self._values: list[np.ndarray[Any, Any]] = []

    def __bool__(self) -> bool:
        return bool(self.row_ids)

    def add(self, row: int, token_ids: Sequence[int] | np.ndarray[Any, Any], values: Any) -> None:
        """The list of a row (rows in ascending order); `values` is as many numbers, or one for all."""
        ids = np.asarray(token_ids, dtype=np.int32)
        self.row_ids.append(row)
        self._token_ids.append(ids)
        self._values.append(values if isinstance(values, np.ndarray) else np.full(ids.shape, values))

    def token_ids(self, device: torch.device) -> Tensor:
        """[N] int32."""
        return torch.from_numpy(np.concatenate(self._token_ids)).to(device)

    def values(self, dtype: type, device: torch.device) -> Tensor:
        """[N] of a numpy dtype."""
        return torch.from_numpy(np.concatenate(self._values).astype(dtype, copy=False)).to(device)

    def cu_of_all(self, num_rows: int, device: torch.device) -> Tensor:
        """Prefix sums [L + 1] int32 over all rows of the step; rows without a list have none."""
        lengths = np.zeros(num_rows + 1, dtype=np.int32)
        lengths[np.array(self.row_ids) + 1] = [len(ids) for ids in self._token_ids]
        return torch.from_numpy(np.cumsum(lengths, dtype=np.int32)).to(device)

    def cu_of_listed(self, device: torch.device) -> Tensor:
        """Prefix sums [R + 1] int32 over the rows that have a list."""
        lengths = [0, *(len(ids) for ids in self._token_ids)]
        return torch.from_numpy(np.cumsum(lengths, dtype=np.int32)).to(device)
