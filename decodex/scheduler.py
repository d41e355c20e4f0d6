"""Which tokens of which sequences the next step computes: continuous batching over one token budget.

Decoding and prefilling are one thing: a sequence has committed tokens that are not computed yet. Order is
(priority, arrival, choice); the last in that order is preempted by recomputation when blocks run out, so the first
always gets on. Owns the block pool and the waiting and running lists; sets slots through the request table.
"""

from __future__ import annotations

import bisect
import time
from dataclasses import dataclass, field

from decodex.block_pool import BlockPool
from decodex.config import ResolvedConfig
from decodex.request import Sequence, Status
from decodex.spec.draft import Draft
from decodex.table import RequestTable

__all__ = ["Plan", "PlanEntry", "Scheduler"]

MAX_PROMPT_ROWS = 128  # logits rows of one step for the prompt_logprobs of one request: 78 MB at V = 152k


@dataclass(frozen=True)
class PlanEntry:
    """Tokens start .. start+num_tokens-1 of a sequence, and the draft behind them if it is sampled from."""

    seq: Sequence
    start: int
    num_tokens: int
    draft: Draft | None

    @property
    def is_sampled(self) -> bool:
        """Whether the entry reaches the last committed token, so that its last row predicts a new one."""
        return self.start + self.num_tokens == len(self.seq.token_ids)

    @property
    def num_drafts(self) -> int:
        """Draft rows behind the committed ones."""
        return len(self.draft) if self.draft is not None else 0


@dataclass
class Plan:
    """One step, in host integers."""

    budget: int  # rows left
    entries: dict[Sequence, PlanEntry] = field(default_factory=dict)
    block_copies: list[tuple[int, int]] = field(default_factory=list)


class Scheduler:
    """See the module. `plan()` is called once a step; `finish` and `preempt` at any point between steps."""

    def __init__(self, config: ResolvedConfig, table: RequestTable) -> None:
        self.pool = BlockPool(config.num_blocks, config.enable_prefix_caching)
        self.waiting: list[Sequence] = []  # sorted by key
        self.running: list[Sequence] = []  # sorted by key
        self._config = config
        self._table = table

    @property
    def has_work(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, seq: Sequence) -> None:
        """Queue a sequence (new, or preempted)."""
        seq.status = Status.WAITING
        bisect.insort(self.waiting, seq, key=lambda s: s.key)

    def finish(self, seq: Sequence) -> None:
        """Take a sequence out, wherever it is, and free what it holds."""
        if seq.status is Status.WAITING:
            self.waiting.remove(seq)
        elif seq.status is Status.RUNNING:
            self._release(seq)
        seq.status = Status.FINISHED

    def plan(self) -> Plan:
        """Give every running sequence its tokens (decodes first, so that prefills don't starve them), then admit."""
        plan = Plan(self._config.max_num_batched_tokens)
        for seq in sorted(self.running, key=lambda s: (s.num_uncomputed > 1, s.key)):
            if seq.status is Status.RUNNING and plan.budget > 0:
                self._plan_running(plan, seq)
        self._admit(plan)
        return plan

    def register_computed(self, entry: PlanEntry) -> None:
        """Offer the blocks that have become full of committed, computed tokens to the prefix cache.

        A drafter writes its own entries after the step, and not if the sequence has ended: they are a step behind. That
        of a block's last token is not needed: it belongs to the token after it, and is written again by who goes on.
        """
        seq = entry.seq
        if not self._config.enable_prefix_caching or seq.is_behind:
            return
        num_whole = min(seq.num_computed, entry.start + 1) if seq.request.has_drafter else seq.num_computed
        full = num_whole // self._config.block_size
        if full > seq.num_registered:
            hashes = seq.block_hashes(full, self._config.block_size)
            for index in range(seq.num_registered, full):
                self.pool.register(seq.block_ids[index], hashes[index])
            seq.num_registered = full

    def _plan_running(self, plan: Plan, seq: Sequence) -> None:
        num_tokens = self._chunk(plan, seq)
        if not self._grow(plan, seq, seq.num_computed + num_tokens):
            return
        self._append_entry(plan, seq, num_tokens)

    def _chunk(self, plan: Plan, seq: Sequence) -> int:
        """Tokens of a sequence in this step; few at a time while each of them needs a row of logits."""
        limit = plan.budget if seq.next_prompt_logprob is None else min(plan.budget, MAX_PROMPT_ROWS)
        return min(seq.num_uncomputed, limit)

    def _append_entry(self, plan: Plan, seq: Sequence, num_tokens: int) -> None:
        draft, seq.draft = seq.draft, None
        if draft is not None and num_tokens == seq.num_uncomputed:
            room = min(plan.budget - num_tokens, self._free_places(seq, len(seq.token_ids)))
            draft = draft.truncated(max_depth=seq.num_remaining - 1, max_nodes=room)
        else:
            draft = None
        if draft is not None:
            self._extend(seq, len(seq.token_ids) + len(draft))
        entry = PlanEntry(seq, seq.num_computed, num_tokens, draft)
        plan.entries[seq] = entry
        plan.budget -= num_tokens + entry.num_drafts

    def reserve(self, seq: Sequence, num_tokens: int) -> int:
        """Blocks for `num_tokens` tokens of a running sequence, as far as they are free; for how many it has them."""
        more = min(num_tokens - len(seq.token_ids), self._free_places(seq, len(seq.token_ids)))
        if more > 0:
            self._extend(seq, len(seq.token_ids) + more)
        return len(seq.block_ids) * self._config.block_size

    def _free_places(self, seq: Sequence, num_tokens: int) -> int:
        """Token places behind the first `num_tokens` that are to be had without preempting anybody."""
        block_size = self._config.block_size
        held = len(seq.block_ids) * block_size - num_tokens
        beyond = self._config.max_blocks_per_seq - len(seq.block_ids)
        return held + min(self.pool.num_free, beyond) * block_size

    def _grow(self, plan: Plan, seq: Sequence, num_tokens: int) -> bool:
        """Make room for `num_tokens` tokens, preempting from the end of the order; False if seq itself had to go."""
        missing = -(-num_tokens // self._config.block_size) - len(seq.block_ids)
        while missing > self.pool.num_free:
            victim = self.running[-1]
            self._preempt(plan, victim)
            if victim is seq:
                return False
        self._extend(seq, num_tokens)
        return True

    def _extend(self, seq: Sequence, num_tokens: int) -> None:
        missing = -(-num_tokens // self._config.block_size) - len(seq.block_ids)
        if missing > 0:
            seq.block_ids.extend(self.pool.allocate() for _ in range(missing))
            self._table.set_blocks(seq)

    def _preempt(self, plan: Plan, seq: Sequence) -> None:
        entry = plan.entries.pop(seq, None)
        if entry is not None:
            plan.budget += entry.num_tokens + entry.num_drafts
        # copies into blocks that are given back are not made: those blocks may be handed out again in this plan
        plan.block_copies = [pair for pair in plan.block_copies if pair[1] not in seq.block_ids]
        self._release(seq)
        seq.request.metrics.num_preemptions += 1
        self.add(seq)

    def _release(self, seq: Sequence) -> None:
        self.running.remove(seq)
        self._table.remove(seq)
        self.pool.release(seq.block_ids)
        seq.block_ids = []
        seq.num_computed = 0
        seq.num_registered = 0
        seq.draft = None
        seq.is_behind = False

    def _admit(self, plan: Plan) -> None:
        for seq in list(self.waiting):
            if plan.budget <= 0:
                return
            leader = self._leader(seq)
            if leader is not None and leader.num_computed < leader.num_prompt_tokens:
                continue  # a sibling is computing the same prompt: take its blocks when it is done
            while len(self.running) >= self._config.max_num_seqs or not self._take_blocks(plan, seq, leader):
                victim = self.running[-1] if self.running else None
                if victim is None or victim.request.priority <= seq.request.priority:
                    return
                self._preempt(plan, victim)
            self.waiting.remove(seq)
            seq.status = Status.RUNNING
            bisect.insort(self.running, seq, key=lambda s: s.key)
            self._table.add(seq)
            if seq.request.metrics.first_scheduled_time is None:
                seq.request.metrics.first_scheduled_time = time.time()
                seq.request.metrics.num_cached_tokens = seq.num_computed
            self._append_entry(plan, seq, self._chunk(plan, seq))

    def _leader(self, seq: Sequence) -> Sequence | None:
        """A running sibling whose prompt blocks a choice without output can share."""
        if len(seq.token_ids) > seq.num_prompt_tokens:
            return None
        return next((s for s in seq.request.sequences if s.status is Status.RUNNING), None)

    def _take_blocks(self, plan: Plan, seq: Sequence, leader: Sequence | None) -> bool:
        """Give a waiting sequence shared blocks for its computed beginning and new ones for the rest, or nothing."""
        block_size = self._config.block_size
        total = -(-len(seq.token_ids) // block_size)
        at_most = len(seq.token_ids) - 1  # the last token is always computed: its row is sampled from
        if leader is not None:
            shared, num_computed = leader.block_ids[:total], at_most
        elif self._config.enable_prefix_caching and seq.next_prompt_logprob is None:
            shared = self.pool.lookup(seq.block_hashes(at_most // block_size, block_size))
            # a drafter needs the hidden states of the last token before the new ones: that one is computed again
            num_computed = len(shared) * block_size - (seq.request.has_drafter and bool(shared))
        else:
            shared, num_computed = [], 0
        writes_shared = num_computed // block_size < len(shared)
        missing = total - len(shared) + writes_shared + sum(self.pool.is_free(block) for block in shared)
        if missing > self.pool.num_free:
            return False
        for block in shared:
            self.pool.share(block)
        seq.block_ids = [*shared, *(self.pool.allocate() for _ in range(total - len(shared)))]
        seq.num_computed = num_computed
        seq.num_registered = num_computed // block_size
        if writes_shared:
            self._copy_on_write(plan, seq, num_computed // block_size)
        return True

    def _copy_on_write(self, plan: Plan, seq: Sequence, index: int) -> None:
        shared = seq.block_ids[index]
        seq.block_ids[index] = self.pool.allocate()
        plan.block_copies.append((shared, seq.block_ids[index]))
        self.pool.release([shared])
