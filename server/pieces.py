"""What each new snapshot of a choice adds to what a client has been sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from decodex.outputs import CompletionOutput, Logprob

__all__ = ["Piece", "Progress"]


@dataclass(frozen=True)
class Piece:
    """New text, tokens and log-probabilities of a choice; a finish reason with the last ones."""

    text: str
    token_ids: list[int]
    logprobs: list[Mapping[int, Logprob]] | None
    finish_reason: str | None
    stop_reason: int | str | None


class Progress:
    """How much of one choice has been sent."""

    def __init__(self) -> None:
        self.is_finished = False
        self._num_characters = 0
        self._num_tokens = 0

    def advance(self, choice: CompletionOutput) -> Piece | None:
        """What is new in a choice; None if nothing is."""
        if self.is_finished or (len(choice.token_ids) == self._num_tokens and choice.finish_reason is None):
            return None
        piece = Piece(
            choice.text[self._num_characters :],
            choice.token_ids[self._num_tokens :],
            None if choice.logprobs is None else list(choice.logprobs[self._num_tokens :]),
            choice.finish_reason,
            choice.stop_reason,
        )
        self._num_characters = len(choice.text)
        self._num_tokens = len(choice.token_ids)
        self.is_finished = choice.finish_reason is not None
        return piece
