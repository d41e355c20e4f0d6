"""Token bitmasks: both bodies against plain Python bits."""

import numpy as np
import pytest
import torch

from decodex.kernels import backend
from decodex.kernels.bitmask import apply_token_bitmask_

NATIVE = pytest.param("native", marks=pytest.mark.skipif(backend.cpu_library() is None, reason="no CPU library"))
both_bodies = pytest.mark.parametrize("body", ["reference", NATIVE])


def random_bitmask(num_rows, num_words, generator):
    words = torch.randint(-(2**31), 2**31, (num_rows, num_words), generator=generator).to(torch.int32)
    words[:, ::3] = -1  # whole words allowed
    words[:, 1::5] = 0
    return words


@both_bodies
@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 64, 100, 1000, 40_000])
def test_bits_decide(body, vocab_size):
    generator = torch.Generator().manual_seed(vocab_size)
    num_words = (vocab_size + 31) // 32
    wide = torch.randn(6, vocab_size + 3, generator=generator)
    logits, before = wide[:, :vocab_size], wide.clone()
    bitmask = random_bitmask(4, num_words + 1, generator)
    rows = [5, 0, 2, 3]
    with backend.set_backend(body):
        assert apply_token_bitmask_(logits, bitmask, torch.tensor(rows)) is logits
    words = bitmask.numpy().view(np.uint32)
    tokens = np.arange(vocab_size)
    for at, row in enumerate(rows):
        allowed = torch.from_numpy((words[at, tokens // 32] >> (tokens % 32)) & 1 == 1)
        assert torch.equal(logits[row], torch.where(allowed, before[row, :vocab_size], -torch.inf))
    assert torch.equal(logits[[1, 4]], before[[1, 4], :vocab_size])
    assert torch.equal(wide[:, vocab_size:], before[:, vocab_size:])


@both_bodies
def test_every_row_without_row_ids(body):
    logits = torch.zeros(2, 40)
    bitmask = torch.tensor([[0b101, -1], [0, 1 << 7]], dtype=torch.int32)
    with backend.set_backend(body):
        apply_token_bitmask_(logits, bitmask)
    assert (logits[0] == 0).nonzero().flatten().tolist() == [0, 2, *range(32, 40)]
    assert (logits[1] == 0).nonzero().flatten().tolist() == [39]


@both_bodies
def test_wrong_arguments_are_named(body):
    logits = torch.zeros(2, 40)
    bitmask = torch.zeros(2, 2, dtype=torch.int32)
    with backend.set_backend(body):
        with pytest.raises(ValueError, match=r"bitmask: expected int32 \[2, 2\]"):
            apply_token_bitmask_(logits, bitmask[:, :1])
        with pytest.raises(ValueError, match=r"bitmask: expected int32 \[R, 2\] on cpu, got int64"):
            apply_token_bitmask_(logits, bitmask.long())
        with pytest.raises(ValueError, match=r"row_ids: expected 0\.\.1"):
            apply_token_bitmask_(logits, bitmask, torch.tensor([0, 2]))
    assert torch.equal(logits, torch.zeros(2, 40))
