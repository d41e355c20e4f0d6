"""The Triton bodies of noise, sampling, truncation and log-probabilities against the reference: the same tokens, the
same bits. Interpreted on the CPU where there is no GPU, so vocabularies are small and kinds of rows share a batch."""

import pytest
import torch
from interpreter import DEVICE  # before any kernel

from decodex.kernels import backend
from decodex.kernels.rng import PURPOSE_PROPOSAL, gumbel_noise
from decodex.kernels.sampling import argmax, gumbel_argmax, sample_rows, top_logprobs, truncate_
from decodex.kernels.sampling_rows import RareRows, SamplingRows
from decodex.kernels.triton import buckets

KINDS = ["normal", "peaked", "ties", "constant", "masked", "huge", "signed zeros"]
BAD_ROWS = [0, 9, 17]


def both(op, logits, *args):
    """Results of the reference and the Triton body, on the CPU; logits are copied for each."""
    with backend.set_backend("reference"):
        expected = op(logits.clone(), *args)
    on_device = [a.to(DEVICE) if isinstance(a, torch.Tensor) else a for a in args]
    on_device = [
        SamplingRows(*(t if t is None else t.to(DEVICE) for t in a)) if isinstance(a, tuple) else a for a in on_device
    ]
    with backend.set_backend("triton"):
        got = op(logits.clone().to(DEVICE), *on_device)
    return expected, got


def make_logits(kind, num_rows, vocab_size, generator):
    logits = torch.randn(num_rows, vocab_size, generator=generator)
    if kind == "peaked":
        return logits * 6
    if kind == "ties":
        return (logits * 2).round()
    if kind == "constant":
        return torch.full_like(logits, 3.5)
    if kind == "masked":
        logits = torch.where(torch.rand(logits.shape, generator=generator) < 0.99, -torch.inf, logits * 4)
        logits[:, vocab_size // 2] = 1.0
    if kind == "huge":
        return logits * 1e37
    if kind == "signed zeros":
        return torch.where(logits > 0, 0.0, -0.0)
    return logits


def mixed_logits(num_rows, vocab_size, generator):
    """Kinds in turn, and three rows that have no token: NaN, nothing above -inf, +inf."""
    logits = torch.cat([make_logits(KINDS[i % len(KINDS)], 1, vocab_size, generator) for i in range(num_rows)])
    for row, value in zip(BAD_ROWS, (torch.nan, -torch.inf, torch.inf)):
        if row < num_rows:
            logits[row, vocab_size // 3] = value
            if value == -torch.inf:
                logits[row] = value
    return logits


def random_rows(num_rows, vocab_size, generator):
    def choose(values, dtype):
        return torch.tensor(values, dtype=dtype)[torch.randint(len(values), (num_rows,), generator=generator)]

    return SamplingRows(
        temperature=choose([0.0, 1e-12, 1e-5, 0.7, 1.0, 1.0, 5.0], torch.float32),
        seeds=torch.randint(-(2**62), 2**62, (num_rows,), generator=generator),
        positions=torch.randint(0, 2**31, (num_rows,), generator=generator),
        top_k=choose([0, 0, -1, 1, 2, 50, 200, vocab_size - 1, vocab_size, vocab_size + 1], torch.int32),
        top_p=choose([1e-9, 0.1, 0.5, 0.9, 1 - 1e-7, 1.0, 1.0], torch.float32),
        min_p=choose([0.0, 0.0, 0.0, 1e-6, 0.05, 1.0], torch.float32),
    )


def assert_same_tokens(expected, got, rows):
    wrong = (expected != got.cpu()).nonzero().flatten().tolist()
    assert not wrong, [(i, int(expected[i]), int(got[i]), [t[i].item() for t in rows[:6]]) for i in wrong[:5]]


@pytest.mark.parametrize("vocab_size", [1, 5, 4099])
def test_noise_is_bit_equal(vocab_size):
    seeds = torch.tensor([0, -5, 2**62 + 12345, -(2**63)])
    positions = torch.tensor([0, 7, 2**31 - 1, 1000])
    with backend.set_backend("reference"):
        expected = gumbel_noise(seeds, positions, vocab_size, PURPOSE_PROPOSAL)
    with backend.set_backend("triton"):
        got = gumbel_noise(seeds.to(DEVICE), positions.to(DEVICE), vocab_size, PURPOSE_PROPOSAL)
    assert torch.equal(expected, got.cpu())


@pytest.mark.parametrize(("vocab_size", "num_rows"), [(1, 8), (1000, 42), (4099, 21)])
def test_mixed_batches_draw_the_same_tokens(vocab_size, num_rows):
    generator = torch.Generator().manual_seed(vocab_size)
    logits = mixed_logits(num_rows, vocab_size, generator)
    rows = random_rows(num_rows, vocab_size, generator)
    expected, got = both(sample_rows, logits, rows)
    assert_same_tokens(expected, got, rows)
    assert (expected == -1).nonzero().flatten().tolist() == [row for row in BAD_ROWS if row < num_rows]


LARGE = [  # logits kind, temperature, top_k, top_p, min_p
    ("normal", 1.0, 5, 1.0, 0.0),  # settled in the best of the 141 blocks
    ("ties", 1.0, 20, 0.9, 0.0),
    ("ties", 0.5, 100, 1.0, 0.0),
    ("peaked", 1.0, 0, 0.95, 0.0),
    ("peaked", 2.0, 60, 1.0, 0.1),
    ("normal", 1.0, 0, 0.9, 0.0),  # and from here on beyond them
    ("normal", 5.0, 0, 0.5, 0.01),
    ("normal", 0.7, 300, 0.9, 0.0),
    ("normal", 1.0, 5000, 0.95, 0.0),
    ("normal", 1.0, 2000, 1.0, 0.05),
    ("peaked", 0.1, 9000, 1.0, 0.0),
    ("ties", 1.0, 1000, 0.7, 0.0),
    ("ties", 1.0, 0, 0.6, 0.0),
    ("constant", 1.0, 4500, 0.5, 0.0),
    ("masked", 2.0, 150, 0.8, 0.0),
    ("huge", 1.0, 200, 0.9, 0.0),
]


def large_batch():
    generator = torch.Generator().manual_seed(7)
    logits = torch.cat([make_logits(kind, 1, 9001, generator) for kind, *_ in LARGE])
    columns = list(zip(*LARGE))
    rows = random_rows(len(LARGE), 9001, generator)._replace(
        temperature=torch.tensor(columns[1]),
        top_k=torch.tensor(columns[2], dtype=torch.int32),
        top_p=torch.tensor(columns[3]),
        min_p=torch.tensor(columns[4]),
    )
    return logits, rows


def test_large_vocabularies_keep_the_same_tokens():
    """Small top_k and peaked nuclei are settled in the best blocks, flat nuclei and large top_k in buckets."""
    logits, rows = large_batch()
    expected, got = both(truncate_, logits, rows)
    assert torch.equal(expected, got.cpu()), (expected != got.cpu()).sum(1)
    assert (expected > -torch.inf).sum(1).max() > 1000


def test_more_crossing_tokens_than_the_list_holds(monkeypatch):
    """Then the whole row is searched: of 4,500 equal logits the first half is kept."""
    logits, rows = large_batch()
    chosen = torch.tensor([10, 13])
    monkeypatch.setattr(buckets, "LIST", 2048)
    expected, got = both(truncate_, logits[chosen], rows.select(chosen))
    assert torch.equal(expected, got.cpu())


def test_truncated_logits_are_bit_equal():
    generator = torch.Generator().manual_seed(3)
    logits, rows = mixed_logits(20, 1000, generator), random_rows(20, 1000, generator)
    expected, got = both(truncate_, logits, rows)
    assert torch.equal(expected, got.cpu())
    assert (expected[BAD_ROWS] == -torch.inf).all()


def test_truncation_takes_strides_and_leaves_the_rest():
    generator = torch.Generator().manual_seed(4)
    wide = torch.randn(3, 1200, generator=generator)
    rows = random_rows(3, 1000, generator)._replace(temperature=torch.ones(3))
    expected, got = wide.clone(), wide.clone().to(DEVICE)
    with backend.set_backend("reference"):
        truncate_(expected[:, 100:1100], rows)
    with backend.set_backend("triton"):
        truncate_(got[:, 100:1100], SamplingRows(*(t if t is None else t.to(DEVICE) for t in rows)))
    assert torch.equal(expected, got.cpu())


def test_gumbel_argmax_and_argmax():
    generator = torch.Generator().manual_seed(5)
    logits = mixed_logits(14, 4099, generator)
    seeds, positions = torch.arange(14) * 31, torch.arange(14)
    for op, args in ((gumbel_argmax, (seeds, positions, PURPOSE_PROPOSAL)), (argmax, ())):
        expected, got = both(op, logits, *args)
        assert torch.equal(expected, got.cpu()), op


@pytest.mark.parametrize("n", [0, 6, 64, 200])
def test_top_logprobs(n):
    generator = torch.Generator().manual_seed(2)
    logits = (torch.randn(5, 4099, generator=generator) * 2).mul(4).round().div(4)
    logits[1, 100:] = -torch.inf
    logits[2] = 0.25
    logits[3, 7] = torch.nan
    chosen = torch.arange(5) * 70
    expected, got = both(top_logprobs, logits, n, chosen)
    good = [0, 1, 2, 4]
    assert torch.equal(expected.ids[good], got.ids.cpu()[good])
    assert torch.equal(expected.ranks[good], got.ranks.cpu()[good])
    torch.testing.assert_close(got.values.cpu(), expected.values, atol=1e-5, rtol=0, equal_nan=True)
    assert got.values[3].isnan().all()


def test_rare_truncations_run_through_the_reference_body():
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(4, 200, generator=generator)
    off, one = torch.zeros(4), torch.ones(4)
    rare = RareRows(off, one, off, torch.full((4,), 0.5), off, off, one, one * 0.1, torch.tensor([3]))
    rows = random_rows(4, 200, generator)._replace(rare=rare)
    with backend.set_backend("reference"):
        expected = sample_rows(logits, rows)
    with backend.set_backend("triton"):
        assert torch.equal(sample_rows(logits, rows), expected)
