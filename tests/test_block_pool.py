"""Blocks, reference counts and the prefix cache."""

from __future__ import annotations

import pytest

from decodex.block_pool import BlockPool, chain_hash


def test_freed_blocks_are_found_until_handed_out_in_lru_order():
    pool = BlockPool(3)
    blocks = [pool.allocate() for _ in range(3)]
    hashes = [chain_hash(b"", [1])]
    hashes.append(chain_hash(hashes[0], [2]))
    pool.register(blocks[0], hashes[0])
    pool.register(blocks[1], hashes[1])
    pool.release(blocks)
    assert pool.lookup(hashes) == blocks[:2]
    assert pool.allocate() == blocks[2], "a block without a name goes first"
    assert pool.allocate() == blocks[1], "then the end of the chain that was freed"
    assert pool.lookup(hashes) == blocks[:1]


def test_shared_block_lives_until_its_last_holder_releases_it():
    pool = BlockPool(1)
    block = pool.allocate()
    pool.share(block)
    pool.release([block])
    assert pool.num_free == 0
    pool.release([block])
    assert pool.num_free == 1
    with pytest.raises(AssertionError, match="released but not held"):
        pool.release([block])


def test_first_block_of_a_content_keeps_the_name():
    pool = BlockPool(2)
    first, second = pool.allocate(), pool.allocate()
    digest = chain_hash(b"", [5])
    pool.register(first, digest)
    pool.register(second, digest)
    assert pool.lookup([digest]) == [first]
    pool.check([[first], [second]])


def test_salt_and_parents_separate_equal_tokens():
    assert chain_hash(b"", [1]) != chain_hash(b"salt", [1])
    assert chain_hash(chain_hash(b"", [1]), [2]) != chain_hash(chain_hash(b"", [2]), [2])


def test_caching_off_finds_nothing():
    pool = BlockPool(1, enable_prefix_caching=False)
    block = pool.allocate()
    pool.register(block, chain_hash(b"", [1]))
    assert pool.lookup([chain_hash(b"", [1])]) == []


def test_reset_forgets_free_blocks():
    pool = BlockPool(2)
    held, freed = pool.allocate(), pool.allocate()
    names = [chain_hash(b"", [1]), chain_hash(b"", [2])]
    pool.register(held, names[0])
    pool.register(freed, names[1])
    pool.release([freed])
    pool.reset_prefix_cache()
    assert pool.lookup(names[:1]) == [held]
    assert pool.lookup(names[1:]) == []
