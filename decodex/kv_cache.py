"""The paged key/value tensors of all layers. Owned by the model runner; block ids are handed out by the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["KVCache", "LayerKV"]

# Elements that torch copies in the calling thread (its grain size). Above, its own second thread helps and then spins
# for some 2 ms, in which it holds a core that the next kernels would use.
SERIAL_ELEMENTS = 32767


@dataclass(frozen=True)
class LayerKV:
    """The key/value shape of one layer; the widths of keys and values may differ (DeepSeek's MLA: 192 and 128)."""

    num_kv_heads: int
    k_dim: int
    v_dim: int

    @property
    def nbytes_per_token(self) -> int:
        """Bytes of one token's keys and values in this layer (fp32)."""
        return 4 * self.num_kv_heads * (self.k_dim + self.v_dim)


class KVCache:
    """Slot-major key/value storage: slot = block_id * block_size + offset in the block."""

    def __init__(self, spec: Sequence[LayerKV], num_blocks: int, block_size: int, device: torch.device) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        slots = num_blocks * block_size
        shapes = [*((s.num_kv_heads, s.k_dim) for s in spec), *((s.num_kv_heads, s.v_dim) for s in spec)]
        # all of a shape in one tensor, so that a block is copied in one go; empty, not zeros: untouched pages of the
        # pool cost no memory until a block is first written
        self._pools = {shape: torch.empty(n, slots, *shape, device=device) for shape, n in Counter(shapes).items()}
        layers = {shape: iter(pool) for shape, pool in self._pools.items()}
        caches = [next(layers[shape]) for shape in shapes]
        self.k = caches[: len(spec)]  # [num_slots, Hkv, Dk] for each layer
        self.v = caches[len(spec) :]  # [num_slots, Hkv, Dv]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination): the copy of copy-on-write."""
        for source, destination in pairs:
            a, b, n = source * self.block_size, destination * self.block_size, self.block_size
            for layers in self._pieces(n):
                layers[:, b : b + n] = layers[:, a : a + n]

    def copy_slots(self, source: Tensor, destination: Tensor) -> None:
        """Copy single slots, [N] int64 each; every source is read before any destination is written."""
        for layers in self._pieces(source.shape[0]):
            layers[:, destination] = layers[:, source]

    def _pieces(self, num_slots: int) -> Iterator[Tensor]:
        """The layers, as many at a time as have no more than SERIAL_ELEMENTS in so many slots."""
        for pool in self._pools.values():
            yield from torch.split(pool, max(SERIAL_ELEMENTS // (num_slots * pool[0, 0].numel()), 1))
