"""The pool of KV blocks: reference counts, and a hash-chained prefix cache with LRU eviction.

A block is free (reference count 0) or held by one or more sequences. A full block of committed tokens may be
registered under its chain hash; it stays findable while free, until it is handed out again. Owned by the scheduler.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["BlockPool", "chain_hash"]


def chain_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """SHA-256 of a block: its parent's hash (the cache salt for the first) followed by its token ids as int64."""
    return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()


class BlockPool:
    """Hands out block ids 0..num_blocks-1."""

    def __init__(self, num_blocks: int, enable_prefix_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.enable_prefix_caching = enable_prefix_caching
        self._refs = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        # first in, first handed out: blocks without a hash go to the front, cached ones to the end
        self._free: OrderedDict[int, None] = OrderedDict((block, None) for block in range(num_blocks))

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out now, cached ones included."""
        return len(self._free)

    def allocate(self) -> int:
        """Hand out one block, evicting the least recently used cached one if no other is free."""
        block, _ = self._free.popitem(last=False)
        self._forget(block)
        self._refs[block] = 1
        return block

    def share(self, block: int) -> None:
        """Take one more reference to a held or cached block."""
        if self._refs[block] == 0:
            del self._free[block]
        self._refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Give back one reference each; the last blocks of a sequence become the first to be evicted."""
        for block in reversed(blocks):
            assert self._refs[block] > 0, f"block {block} is released but not held"
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._free[block] = None
                if self._hash_of[block] is None:
                    self._free.move_to_end(block, last=False)

    def register(self, block: int, digest: bytes) -> None:
        """Make a full block of committed tokens findable; the first block of a content keeps the name."""
        if self.enable_prefix_caching and self._hash_of[block] is None and digest not in self._block_of:
            self._hash_of[block] = digest
            self._block_of[digest] = block

    def lookup(self, digests: Sequence[bytes]) -> list[int]:
        """The blocks of the longest cached beginning of a hash chain (no reference is taken)."""
        found: list[int] = []
        for digest in digests:
            block = self._block_of.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def num_refs(self, block: int) -> int:
        """References held to a block."""
        return self._refs[block]

    def is_free(self, block: int) -> bool:
        """Whether nobody holds the block."""
        return block in self._free

    def reset_prefix_cache(self) -> None:
        """Forget every cached block that nobody holds."""
        for block in list(self._free):
            self._forget(block)

    def check(self, held: Sequence[Sequence[int]]) -> None:
        """Assert that the counts are exactly what the given holders account for (tests call this at every step)."""
        counts = [0] * self.num_blocks
        for blocks in held:
            for block in blocks:
                counts[block] += 1
        assert counts == self._refs, f"reference counts {self._refs} but held {counts}"
        assert set(self._free) == {b for b, refs in enumerate(self._refs) if refs == 0}
        assert {h: b for b, h in enumerate(self._hash_of) if h is not None} == self._block_of

    def _forget(self, block: int) -> None:
        digest = self._hash_of[block]
        if digest is not None:
            del self._block_of[digest]
            self._hash_of[block] = None
