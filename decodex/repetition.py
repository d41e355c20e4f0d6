"""repetition_stop: notices that an output has run into a loop. A function of the output tokens alone."""

from __future__ import annotations

import numpy as np

from decodex.params import SamplingParams

__all__ = ["RepetitionStop"]


class RepetitionStop:
    """For each period p: how many of the last tokens equal the one p places before."""

    def __init__(self, params: SamplingParams) -> None:
        assert params.repetition_stop is not None
        self._periods = np.arange(1, params.repetition_stop_period + 1)
        # the last max(count * p, span) tokens have period p when that many, less p, equal the one p before
        count, span = min(params.repetition_stop, 2**31), min(params.repetition_stop_span, 2**31)
        self._needed = np.maximum(count * self._periods, span) - self._periods
        self._needed = np.maximum(self._needed, self._periods)
        self._runs = np.zeros(len(self._periods), dtype=np.int64)
        self._recent = np.full(len(self._periods), -1, dtype=np.int64)  # the last token first

    def push(self, token: int) -> bool:
        """Take one more output token; returns whether the output now ends in a loop."""
        self._runs = np.where(self._recent == token, self._runs + 1, 0)
        self._recent[1:] = self._recent[:-1].copy()
        self._recent[0] = token
        return bool((self._runs >= self._needed).any())
