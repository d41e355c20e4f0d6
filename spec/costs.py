"""What a step costs: seconds of verifying so many rows and of drafting, as profiled at start-up by the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["CostModel", "DraftCost"]


@dataclass(frozen=True)
class DraftCost:
    """Seconds of one `propose` call: call + views * view + depth * (level + views * row)."""

    call: float = 0.0
    view: float = 0.0
    level: float = 0.0  # each depth of a draft model or head: one forward
    row: float = 0.0

    def seconds(self, num_views: int, depth: int) -> float:
        """The time to draft `depth` tokens for `num_views` sequences; none for none."""
        return self.call + num_views * self.view + depth * (self.level + num_views * self.row) if num_views else 0.0

    @property
    def grows(self) -> bool:
        """Whether deeper drafts cost more (models and heads), so that depth is chosen before drafting."""
        return self.level > 0 or self.row > 0


@dataclass(frozen=True)
class CostModel:
    """Seconds of a target step by rows, linear between profiled points, and of drafting by proposer."""

    num_rows: tuple[int, ...]  # ascending
    seconds: tuple[float, ...]  # as many, never falling
    drafts: Mapping[str, DraftCost] = field(default_factory=dict)

    @staticmethod
    def profiled(points: Mapping[int, float], drafts: Mapping[str, DraftCost] | None = None) -> CostModel:
        """From measured {rows: seconds} (at least one), made monotone: a point costs no more than any larger one.

        Noise only ever adds time, so a slow point is lowered to the later ones instead of raising them.
        """
        num_rows = sorted(points)
        seconds = np.minimum.accumulate([points[rows] for rows in reversed(num_rows)])[::-1]
        return CostModel(tuple(num_rows), tuple(float(value) for value in seconds), dict(drafts or {}))

    def verify(self, num_rows: ArrayLike) -> NDArray[np.float64]:
        """Seconds of steps with these numbers of rows; beyond the last point as between the last two."""
        rows = np.asarray(num_rows, np.float64)
        inside = np.interp(rows, self.num_rows, self.seconds)
        last = self.num_rows[-1]
        if len(self.num_rows) > 1:
            slope = (self.seconds[-1] - self.seconds[-2]) / (last - self.num_rows[-2])
        else:
            slope = self.seconds[-1] / last
        return np.asarray(inside + slope * np.maximum(rows - last, 0))

    def draft(self, name: str) -> DraftCost:
        """What this proposer costs; one that was not profiled costs nothing."""
        return self.drafts.get(name, DraftCost())
