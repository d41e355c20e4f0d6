"""Copies within the paged keys and values, against copies of whole layers one after the other."""

from __future__ import annotations

import pytest
import torch

from decodex import kv_cache
from decodex.kv_cache import KVCache, LayerKV

SPEC = [LayerKV(2, 4, 4), LayerKV(2, 4, 4), LayerKV(1, 6, 3), LayerKV(2, 4, 4), LayerKV(2, 4, 4)]


@pytest.mark.parametrize("most", [1, 40, 200, 10**6])  # elements at a time: less than one layer up to all layers
def test_copies_are_of_all_layers_however_many_are_copied_at_a_time(most, monkeypatch):
    monkeypatch.setattr(kv_cache, "SERIAL_ELEMENTS", most)
    kv = KVCache(SPEC, num_blocks=8, block_size=4, device=torch.device("cpu"))
    for layer in (*kv.k, *kv.v):
        layer.copy_(torch.randn(layer.shape))
    expected = [layer.clone() for layer in (*kv.k, *kv.v)]
    for layer in expected:
        layer[20:24], layer[4:8] = layer[8:12].clone(), layer[28:32].clone()
    kv.copy_blocks([(2, 5), (7, 1)])
    assert all(torch.equal(a, b) for a, b in zip((*kv.k, *kv.v), expected, strict=True))
    source, destination = torch.tensor([3, 9, 10]), torch.tensor([9, 3, 30])  # two change places
    for layer in expected:
        layer[destination] = layer[source].clone()
    kv.copy_slots(source, destination)
    assert all(torch.equal(a, b) for a, b in zip((*kv.k, *kv.v), expected, strict=True))
