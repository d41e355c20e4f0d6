"""Philox against published vectors, the polynomials against fp64, the noise against its distribution."""

import pytest
import torch

from decodex.kernels import backend, rng
from decodex.kernels.reference import rng as reference

needs_native = pytest.mark.skipif(backend.cpu_library() is None, reason="no compiled CPU library")
# Random123's known answers for philox4x32-10: counter, key, words
KNOWN = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_known_answers(counter, key, words):
    c0, c1, c2, c3 = (torch.tensor(word) for word in counter)
    k0, k1 = (torch.tensor(word) for word in key)
    assert tuple(int(word) for word in rng.philox_4x32((c0, c1, c2, c3), (k0, k1))) == words


def test_log_is_accurate():
    generator = torch.Generator().manual_seed(0)
    x = torch.cat(
        [
            torch.exp(torch.randn(200_000, generator=generator) * 5),
            torch.rand(200_000, generator=generator) + 1e-7,
            1 - torch.arange(1, 2000) * 2.0**-24,
            1 + torch.arange(1, 2000) * 2.0**-23,
        ]
    )
    exact = torch.log(x.double())
    assert ((reference.log_positive(x).double() - exact).abs() <= 2e-7 * exact.abs()).all()


def test_exp_is_accurate_and_exact_at_the_ends():
    x = -torch.rand(200_000, generator=torch.Generator().manual_seed(0)) * 87
    assert (reference.exp_nonpositive(x).double() / torch.exp(x.double()) - 1).abs().max() < 2e-7
    ends = torch.tensor([0.0, -0.0, -1e-30, -87.5, -1e38, -torch.inf])
    assert reference.exp_nonpositive(ends).tolist() == [1, 1, 1, 0, 0, 0]


def test_noise_is_finite_for_extreme_words():
    words = torch.tensor([0, 1, 511, 512, 0x7FFFFFFF, 0x80000000, 0xFFFFFE00, 0xFFFFFFFF])
    noise = reference.gumbel_from_words(words)
    assert noise.isfinite().all()
    assert noise[-1] == noise.max()
    assert abs(float(noise.max()) - 16.6355) < 1e-3


def test_noise_is_gumbel():
    """Kolmogorov-Smirnov over 200,000 values, and a chi-square of the words' top bits per token position mod 4."""
    noise = rng.gumbel_noise(torch.tensor([1, 2]), torch.tensor([7, 7]), 100_000).double()
    cdf = torch.exp(-torch.exp(-noise))
    ordered = cdf.flatten().sort().values
    n = ordered.numel()
    distance = (ordered - (torch.arange(n) + 0.5) / n).abs().max() + 0.5 / n
    assert distance < 1.95 / n**0.5  # p = 0.001
    for residue in range(4):
        counts = torch.histc(cdf[:, residue::4], bins=64, min=0, max=1)
        expected = counts.sum() / 64
        assert float(((counts - expected) ** 2 / expected).sum()) < 114  # chi-square 63, p = 0.0001


def test_noise_depends_on_every_part_of_the_key():
    seed, position = torch.tensor([5]), torch.tensor([9])
    base = rng.gumbel_noise(seed, position, 64)
    assert torch.equal(base, rng.gumbel_noise(seed, position, 100)[:, :64])
    for other in (
        rng.gumbel_noise(seed + (1 << 32), position, 64),
        rng.gumbel_noise(seed, position + 1, 64),
        rng.gumbel_noise(seed, position, 64, rng.PURPOSE_XTC),
    ):
        assert (base == other).sum() <= 1


def test_streams_are_words_of_the_counter():
    """Window and sibling are counter words of their own; without them nothing has changed."""
    seed, position, zero = torch.tensor([5]), torch.tensor([9]), torch.tensor([0])
    base = rng.gumbel_noise(seed, position, 64)
    assert torch.equal(base, rng.gumbel_noise(seed, position, 64, windows=zero, siblings=zero))
    streams = [
        rng.gumbel_noise(seed, position, 64, purpose, torch.tensor([window]), torch.tensor([sibling]))
        for purpose in (0, rng.PURPOSE_PROPOSAL)
        for window in (0, 1, 9, 2**31 - 1)
        for sibling in (0, 1, 2**20)
    ]
    for i, one in enumerate(streams):
        assert all((one == other).sum() <= 1 for other in streams[:i])
    words = rng.philox_4x32(tuple(torch.tensor(w) for w in (0, 9, 2 | 3 << 8, 7)), (torch.tensor(5), torch.tensor(0)))
    expected = (int(words[0]) // 512 + 0.5) * 2.0**-23
    keys = (seed, position, rng.PURPOSE_PROPOSAL, torch.tensor([7]), torch.tensor([3]))
    assert float(rng.uniform(*keys)) == expected


@needs_native
@pytest.mark.parametrize("vocab_size", [1, 3, 4, 31, 64, 1001, 49152])
def test_bodies_are_bit_equal(vocab_size):
    seeds = torch.tensor([0, -1, 2**62 + 12345, -(2**63), 77])
    positions = torch.tensor([0, 2**31 - 1, 5, 123456, 77])
    for purpose in (rng.PURPOSE_SAMPLE, rng.PURPOSE_PROPOSAL):
        with backend.set_backend("native"):
            native = rng.gumbel_noise(seeds, positions, vocab_size, purpose)
        with backend.set_backend("reference"):
            assert torch.equal(native, rng.gumbel_noise(seeds, positions, vocab_size, purpose))
    keys = (rng.PURPOSE_RESIDUAL, positions // 2, positions % 1000)
    with backend.set_backend("native"):
        native = rng.gumbel_noise(seeds, positions, vocab_size, *keys), rng.uniform(seeds, positions, *keys)
    with backend.set_backend("reference"):
        expected = rng.gumbel_noise(seeds, positions, vocab_size, *keys), rng.uniform(seeds, positions, *keys)
    assert all(torch.equal(a, b) for a, b in zip(native, expected))


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"seeds: expected int64 \[2\], got float32"):
        rng.gumbel_noise(torch.zeros(2), torch.zeros(2, dtype=torch.int64), 4)
    with pytest.raises(ValueError, match=r"positions: expected int64 \[2\], got int64 \[3\]"):
        rng.gumbel_noise(torch.zeros(2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), 4)
    with pytest.raises(ValueError, match=r"windows: expected int64 \[2\]"):
        rng.uniform(*[torch.zeros(2, dtype=torch.int64)] * 2, 0, torch.zeros(3, dtype=torch.int64))


def test_derived_seeds():
    assert rng.derive_seed(123, 0) == 123
    derived = {rng.derive_seed(seed, k) for seed in (0, 1, 2**64 - 1) for k in range(1, 200)}
    assert len(derived) == 3 * 199
    assert all(0 <= seed < 2**53 for seed in derived)
    assert rng.derive_seed(42, 1) == rng.derive_seed(42, 1)
    with pytest.raises(ValueError, match="k: expected"):
        rng.derive_seed(1, -1)


@pytest.mark.parametrize("seed", [0, 5, -1, 2**63, 2**64 - 1, -(2**63)])
def test_seed_bits(seed):
    bits = rng.seed_bits(seed)
    assert -(2**63) <= bits < 2**63
    assert (bits - seed) % 2**64 == 0
