"""K10, random streams: choices differ, seeded output depends on the request alone, no key is used for two things."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from fakes import FakeModel, RandomProposer
from hypothesis import given, settings
from hypothesis import strategies as st
from properties.every_field import TEXTS, KnownProposer, answer, prompts, run, sampling_params, text_engine

import decodex.sampler
from decodex.kernels import rng
from decodex.kernels.reference import rng as reference_rng
from decodex.params import SamplingParams

V = len(TEXTS)
FLAT = np.zeros(V, dtype=np.float32)


def flat_engine(**options):
    return text_engine(model=FakeModel(V, logits_of=lambda prefix: FLAT), **options)


def tokens_of(output):
    return [tuple(choice.token_ids) for choice in output.outputs]


# --- choices and seeds ---


@settings(max_examples=25)
@given(seed=st.integers(-(2**63), 2**64 - 1), n=st.integers(2, 16), drafts=st.booleans())
def test_choices_differ_on_flat_logits(seed, n, drafts):
    """12^10 outputs: equal ones mean a shared stream."""
    params = SamplingParams(seed=seed, n=n, max_tokens=10, ignore_eos=True)
    [output] = run(flat_engine(proposer=RandomProposer(1) if drafts else None), [([1], params)])
    assert len(set(tokens_of(output))) == n
    assert len({choice.seed for choice in output.outputs}) == n


def test_nearby_seeds_positions_and_requests_differ():
    """Seeds one apart, 2^32 apart, of other sign, and no seed at all; no output is another one shifted in time."""
    seeds = [*range(20), *(s + 2**32 for s in range(5)), 2**63, 2**64 - 1, None, None]
    requests = [([1], SamplingParams(seed=seed, max_tokens=20, ignore_eos=True)) for seed in seeds]
    streams = [tokens_of(output)[0] for output in run(flat_engine(num_blocks=400), requests)]
    pieces = Counter(stream[at : at + 9] for stream in streams for at in range(12))
    assert max(pieces.values()) == 1


def test_a_seed_is_its_64_bits():
    def tokens(seed):
        [output] = run(flat_engine(), [([1], SamplingParams(seed=seed, max_tokens=12, ignore_eos=True))])
        return tokens_of(output)

    assert tokens(-1) == tokens(2**64 - 1)
    assert tokens(-(2**63)) == tokens(2**63)


def test_a_choice_is_reproduced_by_its_seed():
    params = SamplingParams(seed=2**64 - 3, n=5, max_tokens=10, ignore_eos=True, top_p=0.9)
    [output] = run(text_engine(), [([1, 2], params)])
    for choice in output.outputs:
        alone = SamplingParams(seed=choice.seed, max_tokens=10, ignore_eos=True, top_p=0.9)
        assert tokens_of(run(text_engine(), [([1, 2], alone)])[0]) == [tuple(choice.token_ids)]


def test_derived_seeds_are_new_and_fit_into_json():
    parents = [*range(20), 2**32, 2**32 + 1, 2**63, 2**64 - 1]
    derived = [rng.derive_seed(parent, k) for parent in parents for k in range(1, 17)]
    assert len({*derived, *parents}) == len(derived) + len(parents)
    assert all(0 <= seed < 2**53 for seed in derived)


# --- what a seeded answer depends on ---

EXAMPLE = {
    "request": st.tuples(prompts(), sampling_params(max_fields=6)),
    "mates": st.lists(
        st.tuples(prompts(), sampling_params(max_fields=4), st.integers(0, 10), st.integers(-1, 1)), max_size=6
    ),
    "at": st.integers(0, 8),
    "num_blocks": st.integers(14, 30),
    "max_num_seqs": st.integers(1, 7),
    "budget": st.sampled_from([1, 4, 64]),
    "caching": st.booleans(),
    "drafts": st.sampled_from([None, "chain", "tree"]),
}


def check_invariance(request, mates, at, num_blocks, max_num_seqs, budget, caching, drafts):
    right = answer(run(text_engine(), [request])[0])
    engine = text_engine(
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        enable_prefix_caching=caching,
        proposer=None if drafts is None else RandomProposer(3, chain=drafts == "chain"),
    )
    todo, ours, step = list(mates), None, 0
    while todo or ours is None or engine.has_work:
        for mate in [mate for mate in todo if mate[2] <= step]:
            todo.remove(mate)
            engine.add(engine.admission.admit(mate[0], mate[1], priority=mate[3]))
        if step == at:
            ours = engine.admission.admit(*request)
            engine.add(ours)
        if engine.has_work:
            engine.step()
        step += 1
        assert step < 3000, "no end"
    assert answer(engine.output_of(ours)) == right


@settings(max_examples=50)
@given(**EXAMPLE)
def test_seeded_output_depends_on_the_request_alone(**example):
    check_invariance(**example)


@pytest.mark.slow
@settings(max_examples=1500)
@given(**EXAMPLE)
def test_seeded_output_depends_on_the_request_alone_in_a_sweep(**example):
    check_invariance(**example)


@pytest.mark.parametrize("slot", range(5))
def test_preempted_in_every_slot(slot):
    """Urgent arrivals push it out again and again, after 1, 2, 3... tokens."""
    params = SamplingParams(
        seed=5, max_tokens=20, ignore_eos=True, frequency_penalty=1.0, xtc_probability=0.5, logprobs=2
    )
    right = answer(run(text_engine(), [([1, 2, 3], params)])[0])
    engine = text_engine(num_blocks=12, max_num_seqs=6)
    for other in range(slot):
        engine.add(engine.admission.admit([other], SamplingParams(seed=1, max_tokens=2 + other, ignore_eos=True)))
    ours = engine.admission.admit([1, 2, 3], params, priority=5)
    engine.add(ours)
    for round_ in range(12):
        for _ in range(round_ % 4 + 2):
            if engine.has_work:
                engine.step()
        engine.add(engine.admission.admit([2] * 31, SamplingParams(seed=round_, max_tokens=1)))
        engine.add(engine.admission.admit([3] * 14, SamplingParams(seed=round_, max_tokens=2)))
    while engine.has_work:
        engine.step()
    assert ours.metrics.num_preemptions > 2
    assert answer(engine.output_of(ours)) == right


# --- keys ---


def record_keys(monkeypatch):
    """(seed, position) of each row that is drawn from, in order."""
    keys = []

    def spy(logits, rows):
        keys.extend(zip(rows.seeds.tolist(), rows.positions.tolist(), strict=True))
        return sample_rows(logits, rows)

    sample_rows = decodex.sampler.sample_rows
    monkeypatch.setattr(decodex.sampler, "sample_rows", spy)
    return keys


def test_without_drafts_each_key_is_drawn_from_once(monkeypatch):
    """Prefix cache, chunks, choices and preemption do not draw again; every emitted token has a key of its own."""
    keys = record_keys(monkeypatch)
    params = [SamplingParams(seed=100 * i, n=1 + i % 3, max_tokens=9, ignore_eos=True) for i in range(6)]
    engine = text_engine(num_blocks=9, max_num_seqs=4, max_num_batched_tokens=7)
    outputs = run(engine, [([1, 2, 3, 4, 5, 6, 7][i % 3 :], p) for i, p in enumerate(params)])
    assert sum(output.metrics.num_preemptions for output in outputs) > 0
    assert len(keys) == len(set(keys))
    used = {(rng.seed_bits(c.seed), len(o.prompt_token_ids) + k) for o in outputs for c in o.outputs for k in range(9)}
    assert set(keys) == used


def test_with_drafts_only_siblings_and_redraws_share_a_key(monkeypatch):
    """Coupled: all rows of a position draw from the position's key, whatever their depth in the draft or the step."""
    keys = record_keys(monkeypatch)
    params = SamplingParams(seed=7, n=3, max_tokens=12, ignore_eos=True)
    [plain] = run(text_engine(), [([1, 2], params)])
    expected = set(keys)
    keys.clear()
    known = [[1, 2, *choice.token_ids] for choice in plain.outputs]
    for proposer in (RandomProposer(4), *(KnownProposer(known, style) for style in KnownProposer.STYLES)):
        run(text_engine(proposer=proposer), [([1, 2], params)])
        assert set(keys) == expected
        keys.clear()


def test_keys_of_different_purposes_never_meet():
    """Purposes are words of the counter of their own: their streams have no word in common, nor do positions'."""
    purposes = [value for name, value in vars(rng).items() if name.startswith("PURPOSE_")]
    assert len(purposes) == len(set(purposes)) >= 6
    counters = itertools.product(range(8), (0, 1, 2, 3, 1000, 2**31 - 1), purposes)
    calls, positions, purpose = (torch.tensor(column) for column in zip(*counters, strict=True))
    words = torch.cat(
        [
            torch.stack(
                rng.philox_4x32(
                    (calls, positions, purpose, torch.zeros_like(calls)), (torch.tensor(low), torch.tensor(high))
                ),
                -1,
            )
            for low, high in ((0, 0), (1, 0), (0, 1), (2**32 - 1, 2**32 - 1))
        ]
    )
    pairs = {(a << 32) | b for a, b, *_ in words.tolist()}
    assert len(pairs) == len(words)


def test_the_coin_of_xtc_says_nothing_about_the_noise():
    """Correlation of the coin with the noise of each of the first tokens, over 20,000 seeds: none beyond 4.5 sigma."""
    count = 20_000
    seeds, positions = torch.arange(count), torch.full((count,), 17)
    coin = reference_rng.uniform(seeds, positions, rng.PURPOSE_XTC).double()
    noise = rng.gumbel_noise(seeds, positions, 16).double()
    both = torch.corrcoef(torch.cat([coin[:, None], noise], 1).T)
    assert both[0, 1:].abs().max() < 4.5 / count**0.5
    assert (both[1:, 1:] - torch.eye(16)).abs().max() < 4.8 / count**0.5


def test_tokens_in_a_row_are_independent():
    """Pairs of neighbours in one long flat output, and first tokens over consecutive seeds, are uniform (p > 1e-4)."""
    count = 12_000
    positions = torch.arange(count)
    flat = torch.zeros(count, V)
    one_seed = rng.gumbel_noise(torch.full((count,), 42), positions, V).add(flat).argmax(1)
    many_seeds = rng.gumbel_noise(positions, torch.full((count,), 5), V).argmax(1)
    for stream in (one_seed, many_seeds):
        for lag in (1, 2, 4):
            pairs = torch.bincount(stream[:-lag] * V + stream[lag:], minlength=V * V).double()
            mean = float(pairs.mean())
            statistic = float(((pairs - mean) ** 2 / mean).sum())
            degrees = torch.tensor((V * V - 1) / 2, dtype=torch.float64)
            p = float(torch.special.gammaincc(degrees, torch.tensor(statistic / 2, dtype=torch.float64)))
            assert p > 1e-4
