"""A request and its sequences (one for each choice), from arrival to its one reply. Host state, no tensors."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import Enum

from decodex.block_pool import chain_hash
from decodex.completion import Completion
from decodex.constrained import ConstrainedText
from decodex.errors import DecodexError
from decodex.outputs import Logprob, RequestMetrics
from decodex.params import SamplingParams
from decodex.processors import ProcessorSet
from decodex.spec.draft import Draft
from decodex.speculative_config import SpeculativeConfig

__all__ = ["Request", "Sequence", "Status"]


class Status(Enum):
    """Where a sequence is; a preempted one waits again, one whose text is being validated is done but for that."""

    WAITING = "waiting"
    RUNNING = "running"
    CHECKING = "checking"
    FINISHED = "finished"


@dataclass(eq=False)
class Request:
    """One prompt with its parameters; `arrival` orders requests of equal priority (lower priority value first)."""

    request_id: str
    arrival: int
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    priority: int = 0
    cache_salt: str = ""
    sequences: list[Sequence] = field(default_factory=list)
    metrics: RequestMetrics = field(default_factory=lambda: RequestMetrics(arrival_time=time.time()))
    error: DecodexError | None = None
    speculation: SpeculativeConfig | None = None
    prediction: tuple[int, ...] = ()  # what the output is expected to be
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None  # of the prompt's tokens so far; [0] is None

    @property
    def has_drafter(self) -> bool:
        """Whether a model or head with KV of its own drafts for it."""
        if self.speculation is None or self.metrics.speculation_off is not None:
            return False
        return self.speculation.with_weights is not None

    @property
    def block_salt(self) -> bytes:
        """What its blocks are hashed with: only sequences with the same may share them."""
        return self.cache_salt.encode() + (b"\0drafter" if self.has_drafter else b"")

    @property
    def is_finished(self) -> bool:
        """Whether every choice has its finish reason."""
        return all(seq.status is Status.FINISHED for seq in self.sequences)


@dataclass(eq=False)
class Sequence:
    """One choice of a request: its tokens, the KV blocks that hold them, and what has been said of it."""

    request: Request
    index: int
    seed: int
    max_total_tokens: int  # prompt and output together never get longer
    completion: Completion
    token_ids: list[int]  # prompt and committed output
    num_prompt_tokens: int
    status: Status = Status.WAITING
    slot: int = -1
    block_ids: list[int] = field(default_factory=list)
    num_computed: int = 0  # committed tokens whose KV is in block_ids
    num_registered: int = 0  # blocks offered to the prefix cache
    draft: Draft | None = None
    is_behind: bool = False  # a drafter with KV of its own no longer writes entries of it: it can't draft for it
    processors: ProcessorSet | None = None
    constrained: ConstrainedText | None = None
    _hashes: list[bytes] = field(default_factory=list)

    @property
    def key(self) -> tuple[int, int, int]:
        """Scheduling order: priority, then arrival, then choice."""
        return (self.request.priority, self.request.arrival, self.index)

    @property
    def num_uncomputed(self) -> int:
        """Committed tokens that the model has not seen: 1 when decoding, more while prefilling."""
        return len(self.token_ids) - self.num_computed

    @property
    def next_prompt_logprob(self) -> int | None:
        """Position of the first prompt token whose log-probability is still wanted, None if none is.

        The first choice reads them for all; they outlive a preemption.
        """
        done = self.request.prompt_logprobs
        if done is None or self.index > 0 or len(done) >= self.num_prompt_tokens:
            return None
        return len(done)

    @property
    def num_remaining(self) -> int:
        """Tokens that may still be generated."""
        return self.max_total_tokens - len(self.token_ids)

    def block_hashes(self, num_blocks: int, block_size: int) -> Seq[bytes]:
        """Chain hashes of the first `num_blocks` full blocks (committed tokens never change, so neither do these)."""
        while len(self._hashes) < num_blocks:
            start = len(self._hashes) * block_size
            parent = self._hashes[-1] if self._hashes else self.request.block_salt
            self._hashes.append(chain_hash(parent, self.token_ids[start : start + block_size]))
        return self._hashes[:num_blocks]
