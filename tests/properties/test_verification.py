"""K1 and K10 for the verifiers that keep the law: nothing is proposed from one law and verified against another, and no
random number is read twice.

First by enumeration: all drafts of small models with their probabilities, and all verdicts, each forced through the
kernels by coins just inside and just outside its thresholds; the mass of what is emitted must be the target's. Then by
chi-square, with the kernels' own draws over windows that follow each other.
"""

from __future__ import annotations

import importlib.util
import itertools
import pathlib
import sys
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from properties.verification64 import Drafting, Model, block, rejection

from decodex.kernels import backend, rng, sampling
from decodex.kernels.verify import FlatDrafts, draw_proposals, verify_drafts
from decodex.spec import verify as spec_verify
from decodex.spec.draft import Draft
from decodex.spec.verify import verify_step

CHAINS = [[-1], [-1, 0], [-1, 0, 1]]
TREES = [[-1, -1], [-1, -1, -1], [-1, -1, 0], [-1, -1, 0, 0], [-1, 0, 0, 1], [-1, -1, 0, 1]]
VERDICTS = {"rejection": rejection, "block": block}


def _load_chi_square():
    path = pathlib.Path(__file__).resolve().parents[2] / "evals" / "distribution" / "chi_square.py"
    spec = importlib.util.spec_from_file_location("chi_square", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["chi_square"] = module
    spec.loader.exec_module(module)
    return module


chi_square = _load_chi_square()


def emitted_mass(method, target, drafts):
    """Mass of each emitted sequence, with every verdict forced through the kernels; and how many nodes are accepted."""
    cases = [(draft, verdict) for draft in drafts for verdict in VERDICTS[method](draft, target)]
    starts, cu_nodes, rows = [], [0], []
    parents, token_ids, coins, laws = [], [], [], []
    for draft, verdict in cases:
        starts.append(len(rows))
        rows += [target(prefix) for prefix in [(), *draft.prefixes]]
        parents += draft.parents
        token_ids += draft.token_ids
        coins += [verdict.coins.get(node, 0.5) for node in range(len(draft.parents))]
        cu_nodes.append(len(parents))
        laws.append(None if draft.laws is None else torch.tensor(np.array(draft.laws), dtype=torch.float32))
    flat = FlatDrafts(starts, cu_nodes, parents, token_ids, laws)
    p = torch.tensor(np.array(rows), dtype=torch.float32)
    verdicts = verify_drafts(p, flat, torch.tensor(coins, dtype=torch.float32), method == "block")
    left = torch.softmax(verdicts.log_left.double(), 1).numpy()
    mass, num_accepted = defaultdict(float), 0.0
    for i, (draft, verdict) in enumerate(cases):
        accepted = verdicts.is_accepted[cu_nodes[i] : cu_nodes[i + 1]].nonzero().flatten().tolist()
        assert accepted == verdict.accepted, (draft, verdict)
        assert int(verdicts.num_accepted[i]) == len(accepted)
        np.testing.assert_allclose(left[i], verdict.left, atol=1e-5, err_msg=str((draft, verdict)))
        chance = draft.probability * verdict.probability
        path = tuple(draft.token_ids[node] for node in accepted)
        num_accepted += chance * len(path)
        for token in np.flatnonzero(left[i]):
            mass[(*path, int(token))] += chance * left[i][token]
    return mass, num_accepted


def assert_law(mass, target, length, vocab_size):
    """Emitted sequences, continued from the target, have the target's joint law."""
    for sequence in itertools.product(range(vocab_size), repeat=length):
        conditional = [target(sequence[:i])[token] for i, token in enumerate(sequence)]
        got = sum(mass.get(sequence[:i], 0.0) * np.prod(conditional[i:]) for i in range(1, length + 1))
        assert abs(got - np.prod(conditional)) < 2e-5, (sequence, got, np.prod(conditional))


def depth_of(shape):
    depths = [0]
    for parent in shape:
        depths.append(depths[1 + parent] + 1)
    return max(depths)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), vocab_size=st.integers(2, 5), shape=st.sampled_from(CHAINS), is_point=st.booleans())
@example(seed=0, vocab_size=5, shape=CHAINS[2], is_point=False)
def test_chains_keep_the_law(seed, vocab_size, shape, is_point):
    """Under both methods, and block verification accepts at least as much."""
    target, draft = Model(seed, vocab_size), Model(seed + 1, vocab_size)
    drafts = Drafting(shape, draft, is_point).all()
    accepted = {}
    for method in VERDICTS:
        mass, accepted[method] = emitted_mass(method, target, drafts)
        assert_law(mass, target, len(shape) + 1, vocab_size)
    assert accepted["block"] >= accepted["rejection"] - 1e-6


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), vocab_size=st.integers(2, 4), shape=st.sampled_from(TREES), is_point=st.booleans())
def test_trees_keep_the_law(seed, vocab_size, shape, is_point):
    target, draft = Model(seed, vocab_size), Model(seed + 1, vocab_size)
    mass, _ = emitted_mass("rejection", target, Drafting(shape, draft, is_point).all())
    assert_law(mass, target, depth_of(shape) + 1, vocab_size)


@pytest.mark.parametrize("method", VERDICTS)
@pytest.mark.parametrize("shape", CHAINS[1:])
def test_a_drafter_that_is_the_target_is_accepted(method, shape):
    target = Model(5, 4)
    _, num_accepted = emitted_mass(method, target, Drafting(shape, target, False).all())
    assert num_accepted == pytest.approx(len(shape))


# Decoding in windows with the kernels' own draws: two models of three tokens whose laws depend on the last token.
TARGET = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.25, 0.0, 0.75]])
DRAFTER = torch.tensor([[0.2, 0.2, 0.6], [0.4, 0.3, 0.3], [0.5, 0.25, 0.25]])
FIRST_POSITION = 11


def draw_drafts(shape, last, seeds, positions, draw):
    """Draft tokens [B, K] of a shape, siblings without replacement; laws [B, K, V]."""
    tokens = torch.empty(len(last), len(shape), dtype=torch.int64)
    laws = torch.empty(len(last), len(shape), 3)
    depths = []
    for node, parent in enumerate(shape):
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
        if shape.index(parent) < node:  # drawn with its first sibling
            continue
        children = [child for child, other in enumerate(shape) if other == parent]
        law = DRAFTER[last if parent < 0 else tokens[:, parent]]
        siblings = torch.full_like(seeds, 1 + parent)  # nodes of one depth have streams of their own
        drawn = draw(law, seeds, positions + depths[node], positions, len(children), siblings)
        tokens[:, children] = drawn
        laws[:, children] = law[:, None]
    return tokens, laws


def decode(method, shape, num_seqs, num_tokens, is_point=False, draw=draw_proposals):
    """Counts of the first tokens of sequences with seeds 0, 1, ...: windows until each is long enough."""
    texts = [[] for _ in range(num_seqs)]
    open_seqs = list(range(num_seqs))
    while open_seqs:
        last = torch.tensor([texts[b][-1] if texts[b] else 0 for b in open_seqs])
        positions = torch.tensor([FIRST_POSITION + len(texts[b]) for b in open_seqs])
        seeds = torch.tensor(open_seqs) * 7919
        tokens, laws = draw_drafts(shape, last, seeds, positions, draw)
        if is_point:
            tokens = torch.tensor([0, 1, 2, 0])[: len(shape)].expand_as(tokens)
        drafts = [Draft(tuple(t), tuple(shape), laws=None if is_point else q) for t, q in zip(tokens.tolist(), laws)]
        p = torch.cat([TARGET[last][:, None], TARGET[tokens]], 1).flatten(0, 1)
        starts = range(0, len(p), 1 + len(shape))
        results = verify_step(method, p, starts, drafts, seeds.tolist(), positions.tolist())
        for b, (emitted, _) in zip(open_seqs, results):
            texts[b] += emitted
        open_seqs = [b for b in open_seqs if len(texts[b]) < num_tokens]
    return Counter(tuple(text[:num_tokens]) for text in texts)


def fit(counts, num_tokens):
    law = {}
    for sequence in itertools.product(range(3), repeat=num_tokens):
        law[sequence] = float(np.prod([TARGET[a, b] for a, b in itertools.pairwise((0, *sequence))]))
    return chi_square.fit(counts, law, frozenset())


@pytest.mark.parametrize(
    ("method", "shape", "is_point"),
    [
        ("rejection", [-1, 0, 1], False),
        ("rejection", [-1, 0], True),
        ("rejection", [-1, -1, 0, 0], False),
        ("rejection", [-1, -1, 0, 1], False),
        ("rejection", [-1, -1], True),
        ("block", [-1, 0, 1], False),
        ("block", [-1, 0], True),
    ],
)
def test_decoded_windows_have_the_targets_law(method, shape, is_point):
    found = fit(decode(method, shape, 12_000, 4, is_point), 4)
    assert found.p_value > 1e-4, found


def test_streams_keyed_by_position_alone_are_found(monkeypatch):
    """The control: draws after a cut influenced where it is, so block verification must not read them again."""
    this = sys.modules[__name__]
    monkeypatch.setattr(this, "TARGET", torch.tensor([0.5, 0.3, 0.2]).expand(3, 3))
    monkeypatch.setattr(this, "DRAFTER", torch.tensor([0.2, 0.3, 0.5]).expand(3, 3))

    def test():
        counts = Counter()
        for text, num in decode("block", [-1, 0, 1], 3000, 10).items():
            counts.update(dict.fromkeys(text, 0))
            for token in text:
                counts[token] += num
        return chi_square.fit(counts, {0: 0.5, 1: 0.3, 2: 0.2}, frozenset()).p_value

    assert test() > 1e-3
    for module in (rng, sampling):
        monkeypatch.setattr(module, "pack_streams", lambda windows, siblings: None)
    assert test() < 1e-5


@pytest.mark.parametrize(("method", "shape"), [("rejection", [-1, -1, 0, 0, 1]), ("block", [-1, 0, 1])])
def test_no_stream_is_read_twice(monkeypatch, method, shape):
    read = Counter()

    def record(purpose, seeds, positions, windows, siblings):
        siblings = torch.zeros_like(seeds) if siblings is None else siblings
        rows = zip(seeds.tolist(), windows.tolist(), positions.tolist(), siblings.tolist())
        read.update((*row, purpose) for row in rows)

    def recorded_argmax(logits, seeds, positions, purpose, windows, siblings=None):
        record(purpose, seeds, positions, windows, siblings)
        return sampling.gumbel_argmax(logits, seeds, positions, purpose, windows, siblings)

    def recorded_draws(laws, seeds, positions, windows, num, siblings):
        record(rng.PURPOSE_PROPOSAL, seeds, positions, windows, siblings)
        return draw_proposals(laws, seeds, positions, windows, num, siblings)

    def recorded_uniform(seeds, positions, purpose, windows, siblings):
        record(purpose, seeds, positions, windows, siblings)
        return rng.uniform(seeds, positions, purpose, windows, siblings)

    monkeypatch.setattr(spec_verify, "gumbel_argmax", recorded_argmax)
    monkeypatch.setattr(spec_verify, "uniform", recorded_uniform)
    decode(method, shape, 50, 12, draw=recorded_draws)
    assert {key[-1] for key in read} == {rng.PURPOSE_PROPOSAL, rng.PURPOSE_ACCEPTANCE, rng.PURPOSE_RESIDUAL}
    assert max(read.values()) == 1


@pytest.mark.parametrize("body", ["native", "reference"])
def test_first_draws_are_without_replacement(body):
    """Ordered pairs and triples of draw_proposals against the law of sequential draws; 0 has no mass, -1 fills."""
    if body == "native" and backend.cpu_library() is None:
        pytest.skip("no compiled CPU library")
    law = torch.tensor([0.0, 0.5, 0.3, 0.2])
    num = 20_000
    seeds, positions = torch.arange(num), torch.full((num,), 3)
    with backend.set_backend(body):
        drawn = draw_proposals(law.expand(num, 4), seeds, positions, positions, 4)
        one = draw_proposals(law.expand(num, 4), seeds, positions, positions, 1)
    assert torch.equal(one[:, 0], drawn[:, 0])
    assert (drawn[:, 3] == -1).all()
    expected = {}
    for order in itertools.permutations((1, 2, 3)):
        a, b, _ = order
        expected[order] = float(law[a] * law[b] / (1 - law[a]))
    found = chi_square.fit(Counter(map(tuple, drawn[:, :3].tolist())), expected, frozenset())
    assert found.p_value > 1e-4, found
