"""What a request gives back. Plain data; the server and the Python API both read these."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from decodex.errors import DecodexError
from decodex.structured_outputs import read_output

__all__ = ["CompletionOutput", "Logprob", "RequestMetrics", "RequestOutput", "SpeculationMetrics"]


@dataclass(frozen=True)
class Logprob:
    """A token's log-probability, its rank (1 = most likely) and its text. Raw: before any mask or temperature;
    processed: among what step 7 of the row pipeline keeps, -inf for the others."""

    logprob: float
    rank: int
    decoded_token: str


@dataclass
class SpeculationMetrics:
    """What became of guessed tokens, over all choices of a request."""

    num_steps: int = 0  # in which the target chose tokens
    num_tokens: int = 0  # that came out of them
    num_drafted: int = 0
    num_accepted: int = 0
    drafted_at: list[int] = field(default_factory=list)  # by depth, from 0
    accepted_at: list[int] = field(default_factory=list)
    by_proposer: dict[str, tuple[int, int]] = field(default_factory=dict)  # drafted, accepted

    @property
    def tokens_per_step(self) -> float:
        """1 without speculation."""
        return self.num_tokens / self.num_steps if self.num_steps else 0.0


@dataclass
class RequestMetrics:
    """Times are seconds since the epoch; tokens from the prefix cache are of the first admission."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    speculation_off: str | None = None  # why no proposer is asked for this request
    speculation: SpeculationMetrics | None = None  # where proposers are asked


@dataclass(frozen=True)
class CompletionOutput:
    """One choice. `seed` with n = 1 reproduces it. `finish_reason` is stop, length, abort, error, or None (running);
    `stop_reason` is the stop string or token, or "repetition" (SamplingParams.repetition_stop). `check` says what the
    independent validation of a constrained text came to: passed, failed (then `finish_reason` is error), unavailable
    (its worker was killed, or the time was up), or None (there was nothing to validate)."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None
    cumulative_logprob: float | None
    finish_reason: str | None
    stop_reason: int | str | None
    seed: int
    check: str | None = None
    schema: Any = field(default=None, repr=False)  # of a JSON constraint: what `parsed` is read into

    @functools.cached_property
    def parsed(self) -> Any:
        """The output of a JSON constraint that ended with "stop": an instance of the class that was given as the
        schema, else plain values; None otherwise. Raises what the class's own validators raise."""
        if self.schema is None or self.finish_reason != "stop":
            return None
        return read_output(self.schema, self.text)


@dataclass(frozen=True)
class RequestOutput:
    """A request's answer so far; `error` is set when it failed on its own while others went on."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics = field(repr=False)
    replayable: bool = True
    system_fingerprint: str = ""
    error: DecodexError | None = None
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None  # one for each prompt token; the first has none
