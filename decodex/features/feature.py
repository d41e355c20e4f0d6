"""The one contract of a feature (bias, bans, penalties, grammar, custom processor...)."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from decodex.batch import Rows
from decodex.params import SamplingParams

__all__ = ["Feature"]


class Feature(Protocol):
    """Per-slot state plus an in-place change of logits rows. No row using it = no work."""

    def add(self, slot: int, params: SamplingParams) -> bool:
        """Take a slot's parameters; returns whether the slot uses the feature."""
        ...

    def apply(self, logits: Tensor, rows: Rows) -> None:
        """Change logits [L, V] fp32 in place, each row by its own slot, position and ancestors alone."""
        ...

    def remove(self, slot: int) -> None:
        """Forget a slot."""
        ...
