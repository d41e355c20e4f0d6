"""The last word on constrained outputs: their texts are validated elsewhere, independently, before "stop" is reported.

The engine owns it. A sequence whose text is being validated is CHECKING: out of the scheduler, without blocks.
"""

from __future__ import annotations

import concurrent.futures
import logging

from decodex.errors import EngineError
from decodex.grammar.check import CheckUnavailable, IndependentCheck
from decodex.request import Request, Sequence, Status

__all__ = ["Verdicts"]

logger = logging.getLogger(__name__)

WAIT = 0.02  # seconds that a step waits for a verdict when it has nothing else to do


class Verdicts:
    """Texts that are being validated, and how many were wrong."""

    def __init__(self, check: IndependentCheck | None) -> None:
        """`check`: None where texts are not validated."""
        self.num_mismatches = 0  # texts that a grammar let through and the validation did not
        self.num_unavailable = 0
        self._check = check
        self._pending: dict[Sequence, concurrent.futures.Future[str | None]] = {}

    def __bool__(self) -> bool:
        """Whether any verdict is pending."""
        return bool(self._pending)

    def expect(self, request: Request) -> None:
        """A constrained request has come: have the validating process ready when its text is complete."""
        constraint = request.params.whole_output
        if self._check is not None and constraint is not None and self._check.judges(constraint.constraint):
            self._check.start()

    def begin(self, seq: Sequence) -> None:
        """Have the text of a sequence validated that ended with "stop" under a whole-output constraint."""
        constraint = seq.request.params.whole_output
        if self._check is None or constraint is None or seq.completion.finish_reason != "stop":
            return
        if not self._check.judges(constraint.constraint):
            return
        seq.status = Status.CHECKING
        seq.completion.check = "pending"
        self._pending[seq] = self._check.submit(constraint.constraint, seq.completion.text)

    def settle(self, wait: bool) -> list[Request]:
        """Finish the sequences whose verdicts have come; `wait` a moment for one. Their requests."""
        if not self._pending:
            return []
        if wait:
            first = concurrent.futures.FIRST_COMPLETED
            concurrent.futures.wait(self._pending.values(), timeout=WAIT, return_when=first)
        settled: dict[str, Request] = {}
        for seq in [seq for seq, verdict in self._pending.items() if verdict.done()]:
            self._take(seq, self._pending.pop(seq))
            settled[seq.request.request_id] = seq.request
        return list(settled.values())

    def drop(self, seq: Sequence) -> None:
        """Its request has ended in another way."""
        verdict = self._pending.pop(seq, None)
        if verdict is not None:
            verdict.cancel()
            seq.completion.check = None

    def close(self) -> None:
        """End the validating process."""
        if self._check is not None:
            self._check.close()

    def _take(self, seq: Sequence, verdict: concurrent.futures.Future[str | None]) -> None:
        seq.status = Status.FINISHED
        try:
            fault = verdict.result()
        except CheckUnavailable as error:
            self.num_unavailable += 1
            seq.completion.check = "unavailable"
            logger.warning("request %s: its text was not validated: %s", seq.request.request_id, error)
            return
        seq.completion.check = "passed" if fault is None else "failed"
        if fault is not None:
            self.num_mismatches += 1
            constraint = seq.request.params.constrained
            assert constraint is not None
            message = f"choice {seq.index}: the text does not satisfy structured_outputs.{constraint.kind}: {fault}"
            logger.error("request %s: %s", seq.request.request_id, message)
            seq.request.error = EngineError(message)
            seq.completion.finish("error")
