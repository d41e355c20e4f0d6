"""The Triton bodies of penalties, bias, allow sets and bitmasks against the reference, bit for bit."""

import pytest
import torch
from interpreter import DEVICE  # before any kernel

from decodex.kernels import backend
from decodex.kernels.bitmask import apply_token_bitmask_
from decodex.kernels.penalties import add_bias_, apply_penalties_, keep_only_

VOCAB_SIZE = 2500  # two tiles


def check(op, logits, *args):
    expected, got = logits.clone(), logits.clone().to(DEVICE)
    with backend.set_backend("reference"):
        op(expected, *args)
    with backend.set_backend("triton"):
        result = op(got, *(a if a is None else a.to(DEVICE) for a in args))
    assert result is got
    assert torch.equal(expected, got.cpu())
    return expected


def make_lists(lengths, generator):
    cu = torch.tensor([0, *lengths]).cumsum(0).int()
    ids = [torch.randperm(VOCAB_SIZE, generator=generator)[:n] for n in lengths]
    return cu, torch.cat(ids).int()


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(11)


@pytest.fixture
def logits(generator):
    logits = torch.randn(6, VOCAB_SIZE, generator=generator)
    logits[2, ::3] = -torch.inf
    return logits


def test_penalties(logits, generator):
    cu, ids = make_lists([0, 700, 0, 3, 1, 0], generator)
    counts = torch.randint(0, 3, ids.shape, generator=generator, dtype=torch.int32)
    strengths = [torch.rand(6, generator=generator) + 0.5 for _ in range(3)]
    changed = check(apply_penalties_, logits, cu, ids, counts, *strengths)
    assert torch.equal(changed[[0, 2, 5]], logits[[0, 2, 5]])


def test_nothing_listed(logits):
    cu, ids = torch.zeros(7, dtype=torch.int32), torch.empty(0, dtype=torch.int32)
    assert torch.equal(check(add_bias_, logits, cu, ids, torch.empty(0)), logits)
    kept = check(keep_only_, logits, torch.tensor([4]), cu[:2], ids)
    assert (kept[4] == -torch.inf).all()


def test_bias(logits, generator):
    cu, ids = make_lists([600, 0, 5, 0, 0, 30], generator)
    values = torch.randn(ids.shape[0], generator=generator)
    values[::7] = -torch.inf
    check(add_bias_, logits, cu, ids, values)


def test_keep_only(logits, generator):
    cu, ids = make_lists([3, 0, 900], generator)
    kept = check(keep_only_, logits, torch.tensor([5, 0, 2]), cu, ids)
    assert torch.equal(kept[[1, 3, 4]], logits[[1, 3, 4]])


@pytest.mark.parametrize("row_ids", [None, [3, 0]])
def test_bitmask(logits, generator, row_ids):
    num_masks = 6 if row_ids is None else len(row_ids)
    shape = (num_masks, (VOCAB_SIZE + 31) // 32 + 1)
    bitmask = torch.randint(-(2**31), 2**31, shape, generator=generator, dtype=torch.int64).int()
    check(apply_token_bitmask_, logits, bitmask, None if row_ids is None else torch.tensor(row_ids))
