"""Penalties, bias and allow sets: both bodies bit for bit, against plain Python and transformers."""

import math

import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from decodex.kernels import backend
from decodex.kernels.penalties import add_bias_, apply_penalties_, keep_only_

NATIVE = pytest.param("native", marks=pytest.mark.skipif(backend.cpu_library() is None, reason="no CPU library"))
both_bodies = pytest.mark.parametrize("body", ["reference", NATIVE])


def ragged(lists, dtype=torch.int32):
    cu = torch.tensor(np.cumsum([0] + [len(one) for one in lists]), dtype=torch.int32)
    return cu, torch.tensor([item for one in lists for item in one], dtype=dtype)


def random_lists(num_rows, vocab_size, generator):
    sizes = torch.randint(0, min(vocab_size, 40) + 1, (num_rows,), generator=generator).tolist()
    return [torch.randperm(vocab_size, generator=generator)[:size].tolist() for size in sizes]


def case(seed, num_rows=7, vocab_size=130):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, vocab_size, generator=generator) * 3
    logits[:, ::5] = -torch.inf
    logits[0, 3], logits[1, 4], logits[2, 6] = 0.0, -0.0, torch.nan
    lists = random_lists(num_rows, vocab_size, generator)
    lists[3] = []
    counts = [torch.randint(0, 4, (len(one),), generator=generator).tolist() for one in lists]
    return logits, lists, counts, generator


def penalties(num_rows, generator):
    def choose(values):
        return torch.tensor(values)[torch.randint(len(values), (num_rows,), generator=generator)]

    return choose([1.0, 1.1, 0.5, 2.0]), choose([0.0, 0.2, -1.5]), choose([0.0, 0.7, -0.3])


@both_bodies
def test_penalties_by_definition(body):
    """The formula of a token, one fp32 rounding after the other."""
    logits, lists, counts, generator = case(0)
    repetition, frequency, presence = penalties(7, generator)
    expected = logits.numpy().copy()
    for row, (ids, times) in enumerate(zip(lists, counts, strict=True)):
        r, f, p = (np.float32(t[row].item()) for t in (repetition, frequency, presence))
        for token, count in zip(ids, times, strict=True):
            value = expected[row, token]
            value = value / r if value > 0 else value * r
            value = value - f * np.float32(count)
            expected[row, token] = value - (p if count > 0 else np.float32(0))
    cu, token_ids = ragged(lists)
    with backend.set_backend(body):
        result = apply_penalties_(logits, cu, token_ids, ragged(counts)[1], repetition, frequency, presence)
    assert result is logits
    np.testing.assert_array_equal(logits.numpy(), expected)


@both_bodies
def test_repetition_is_that_of_transformers(body):
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(4, 90, generator=generator)
    ids = torch.randint(0, 90, (4, 30), generator=generator)
    expected = RepetitionPenaltyLogitsProcessor(1.3)(ids, logits.clone())
    lists = [sorted(set(row.tolist())) for row in ids]
    cu, token_ids = ragged(lists)
    zeros = torch.zeros(4)
    with backend.set_backend(body):
        apply_penalties_(logits, cu, token_ids, torch.ones_like(token_ids), torch.full((4,), 1.3), zeros, zeros)
    assert torch.equal(logits, expected)


@both_bodies
def test_off_is_absent(body):
    logits, lists, counts, _ = case(1)
    before = logits.clone()
    cu, token_ids = ragged(lists)
    zeros = torch.zeros(7)
    with backend.set_backend(body):
        apply_penalties_(logits, cu, token_ids, ragged(counts)[1], torch.ones(7), zeros, zeros)
        assert torch.equal(logits.nan_to_num(99.0), before.nan_to_num(99.0))
        add_bias_(logits, cu, token_ids, torch.zeros(len(token_ids)))
        assert torch.equal(logits.nan_to_num(99.0), before.nan_to_num(99.0))
        empty = torch.zeros(0, dtype=torch.int32)
        no_list = torch.zeros(8, dtype=torch.int32)
        apply_penalties_(logits, no_list, empty, empty, torch.full((7,), 2.0), zeros + 1, zeros + 1)
        add_bias_(logits, no_list, empty, torch.zeros(0))
        keep_only_(logits, torch.zeros(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int32), empty)
    assert torch.equal(logits.nan_to_num(99.0), before.nan_to_num(99.0))


@both_bodies
def test_bias_adds_and_bans(body):
    logits, lists, _, generator = case(2)
    cu, token_ids = ragged(lists)
    values = torch.randn(len(token_ids), generator=generator)
    values[::3] = -torch.inf
    expected, at = logits.clone(), 0
    for row, ids in enumerate(lists):
        for token in ids:
            expected[row, token] += values[at]
            at += 1
    with backend.set_backend(body):
        assert add_bias_(logits, cu, token_ids, values) is logits
    assert torch.equal(logits.nan_to_num(99.0), expected.nan_to_num(99.0))


@both_bodies
def test_keep_only_leaves_the_listed_tokens(body):
    logits, lists, _, _ = case(3)
    row_ids = [5, 3, 0]
    cu, token_ids = ragged([lists[row] for row in row_ids])
    expected = logits.clone()
    for row in row_ids:
        for token in range(130):
            if token not in lists[row]:
                expected[row, token] = -math.inf
    with backend.set_backend(body):
        assert keep_only_(logits, torch.tensor(row_ids), cu, token_ids) is logits
    assert torch.equal(logits.nan_to_num(99.0), expected.nan_to_num(99.0))
    assert (logits[3] == -torch.inf).all()


@pytest.mark.skipif(backend.cpu_library() is None, reason="no CPU library")
@pytest.mark.parametrize("vocab_size", [1, 33, 5000])
def test_bodies_are_bit_equal_on_strided_rows(vocab_size):
    results = []
    for body in ("native", "reference"):
        generator = torch.Generator().manual_seed(vocab_size)
        wide = torch.randn(40, vocab_size + 9, generator=generator) * 5
        logits = wide[:, 2 : 2 + vocab_size]
        lists = random_lists(40, vocab_size, generator)
        cu, token_ids = ragged(lists)
        counts = torch.randint(0, 100, token_ids.shape, generator=generator, dtype=torch.int32)
        with backend.set_backend(body):
            apply_penalties_(logits, cu, token_ids, counts, *penalties(40, generator))
            add_bias_(logits, cu, token_ids, torch.randn(token_ids.shape, generator=generator))
            rows = torch.arange(0, 40, 3)
            keep_only_(logits, rows, *ragged([lists[row] for row in rows.tolist()]))
        results.append(wide)
    assert torch.equal(*results)


@both_bodies
def test_wrong_arguments_are_named_and_change_nothing(body):
    logits = torch.zeros(2, 5)
    ids = torch.tensor([1, 4], dtype=torch.int32)
    cu = torch.tensor([0, 1, 2], dtype=torch.int32)
    values = torch.ones(2)
    with backend.set_backend(body):
        with pytest.raises(ValueError, match=r"logits: expected float32 \[L, V\]"):
            add_bias_(logits.double(), cu, ids, values)
        with pytest.raises(ValueError, match=r"cu: expected int32 \[3\] on cpu, got int32 \[2\]"):
            add_bias_(logits, cu[:2], ids, values)
        with pytest.raises(ValueError, match="cu: expected 0, ascending, up to 2"):
            add_bias_(logits, torch.tensor([0, 2, 1], dtype=torch.int32), ids, values)
        for wrong in (-1, 5):
            with pytest.raises(ValueError, match=r"token_ids: expected 0\.\.4"):
                add_bias_(logits, cu, torch.tensor([1, wrong], dtype=torch.int32), values)
        with pytest.raises(ValueError, match=r"row_ids: expected 0\.\.1"):
            keep_only_(logits, torch.tensor([0, 2]), cu, ids)
        with pytest.raises(ValueError, match=r"frequency: expected float32 \[2\]"):
            apply_penalties_(logits, cu, ids, ids, values, values[:1], values)
    assert torch.equal(logits, torch.zeros(2, 5))
