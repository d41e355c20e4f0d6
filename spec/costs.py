"""What a step costs: seconds of verifying so many rows and of drafting, as profiled at start-up by the engine."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

__all__ = ["CostModel", "DraftClock", "DraftCost"]

CLOCK_WEIGHT = 0.2  # of the newest call in what a call is taken to cost


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
    context: int = 0  # tokens before each row where this was profiled,
    token_seconds: float = 0.0  # and what a row takes for each one more

    @staticmethod
    def profiled(points: Mapping[int, float], drafts: Mapping[str, DraftCost] | None = None) -> CostModel:
        """From measured {rows: seconds} (at least one), made monotone: a point costs no more than any larger one.

        Noise only ever adds time, so a slow point is lowered to the later ones instead of raising them.
        """
        num_rows = sorted(points)
        seconds = tuple(accumulate((points[rows] for rows in reversed(num_rows)), min))[::-1]
        return CostModel(tuple(num_rows), seconds, dict(drafts or {}))

    def table(self, max_rows: int, context: float = 0.0) -> Sequence[float]:
        """[> max_rows] seconds of a step by its rows (0 as 1), with so many tokens before each on average; beyond the
        last point as between the last two."""
        table = self._table
        for rows in range(len(table), max_rows + 1):
            table.append(self._interpolated(max(rows, 1)))
        more = self.token_seconds * (context - self.context)
        return [seconds + rows * more for rows, seconds in enumerate(table)] if more > 0 else table

    @cached_property
    def _table(self) -> list[float]:
        return []

    def _interpolated(self, rows: int) -> float:
        if len(self.num_rows) == 1:
            return self.seconds[0] * max(rows / self.num_rows[0], 1)
        right = min(max(bisect_left(self.num_rows, rows), 1), len(self.num_rows) - 1)
        left = right - 1
        slope = (self.seconds[right] - self.seconds[left]) / (self.num_rows[right] - self.num_rows[left])
        return self.seconds[left] + slope * max(rows - self.num_rows[left], 0)

    def draft(self, name: str) -> DraftCost:
        """What this proposer costs; one that was not profiled costs nothing."""
        return self.drafts.get(name, DraftCost())


class DraftClock:
    """What a model or head costs for each depth of its drafts, by the number of sequences; learnt on the way."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}  # of a depth, by the bits of the number of sequences
        self._writing: dict[int, float] = {}  # of a call without drafts

    def note(self, num_views: int, depth: int, seconds: float) -> None:
        """A `propose` for decoding sequences took so long; one without drafts (depth 0) wrote KV only, which has to be
        done anyway, and is no cost of drafts."""
        size = num_views.bit_length()
        if depth == 0:
            self._writing[size] = _towards(self._writing.get(size, seconds), seconds)
            return
        each = max(seconds - self._writing.get(size, 0.0), seconds / 4) / depth
        self._seconds[size] = _towards(self._seconds.get(size, each), each)

    def cost(self, num_views: int) -> DraftCost:
        """Of a call for so many sequences: from calls for about as many; nothing before the first one."""
        if not self._seconds:
            return DraftCost()
        size = num_views.bit_length()
        nearest = min(self._seconds, key=lambda known: abs(known - size))
        return DraftCost(level=self._seconds[nearest] * 2.0 ** max(0, size - nearest))


def _towards(known: float, seconds: float) -> float:
    return known + CLOCK_WEIGHT * (min(seconds, 2 * known) - known)  # a call may take long for reasons of its own
