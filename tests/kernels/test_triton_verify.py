"""Verification and keyed streams in Triton against the reference, bit for bit; interpreted without a GPU."""

import pytest
import torch
from interpreter import DEVICE  # before any kernel
from verify_cases import make_case, random_law

from decodex.kernels import backend
from decodex.kernels.rng import PURPOSE_ACCEPTANCE, PURPOSE_PROPOSAL, gumbel_noise, uniform
from decodex.kernels.verify import draw_proposals, log_law, verify_drafts


@pytest.mark.parametrize("is_block", [False, True])
@pytest.mark.parametrize("vocab_size", [2, 13, 2500])
def test_verdicts_are_bit_equal(vocab_size, is_block):
    generator = torch.Generator().manual_seed(vocab_size)
    for _ in range(3):
        laws, drafts, coins = make_case(vocab_size, 8, is_block, generator)
        with backend.set_backend("reference"):
            expected = verify_drafts(laws, drafts, coins, is_block)
            logs = log_law(laws)
        moved = drafts._replace(laws=[None if law is None else law.to(DEVICE) for law in drafts.laws])
        with backend.set_backend("triton"):
            got = verify_drafts(laws.to(DEVICE), moved, coins.to(DEVICE), is_block)
            assert torch.equal(log_law(laws.to(DEVICE)).cpu(), logs)
        assert all(torch.equal(a, b.cpu()) for a, b in zip(expected, got))


def test_keyed_streams_are_bit_equal():
    generator = torch.Generator().manual_seed(2)
    seeds = torch.randint(-(2**62), 2**62, (6,), generator=generator)
    positions, windows, siblings = (torch.randint(0, 2**23, (6,), generator=generator) for _ in range(3))
    laws = random_law(6, 2500, generator)
    found = {}
    for body, device in (("reference", "cpu"), ("triton", DEVICE)):
        keys = [key.to(device) for key in (seeds, positions, windows, siblings)]
        with backend.set_backend(body):
            found[body] = [
                gumbel_noise(*keys[:2], 70, PURPOSE_PROPOSAL, *keys[2:]),
                uniform(*keys[:2], PURPOSE_ACCEPTANCE, *keys[2:]),
                uniform(*keys[:2], PURPOSE_ACCEPTANCE),
                *(draw_proposals(laws.to(device), *keys[:3], num, keys[3]) for num in (1, 3)),
            ]
    assert all(torch.equal(a, b.cpu()) for a, b in zip(found["reference"], found["triton"]))
