"""Suffix decoding against a count over the whole text; the corpus against its bound."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from proposer_views import view_of

from decodex.spec.draft import ROOT
from decodex.spec.proposer import TreeShape
from decodex.spec.suffix import BYTES_PER_TOKEN, GROWTH, MAX_MATCH, MAX_PLACES, SIZES, SuffixCorpus, SuffixProposer

TOKENS = st.integers(0, 2)


def longest_match(text, end):
    """How many tokens before text[end] are the last tokens of the text."""
    return next((n for n in range(min(end, MAX_MATCH)) if text[end - 1 - n] != text[-1 - n]), min(end, MAX_MATCH))


def continuations(text, size):
    """Every earlier place that may vote, the latest first: its match and the `size` tokens after it."""
    matches = {end: longest_match(text, end) for end in range(len(text) - 1, 0, -1)}
    gram = next((size for size in SIZES if any(match >= size for match in matches.values())), None)
    found = []
    for end, match in matches.items():
        if gram is not None and match >= gram:
            found.append((match, copy_from(text, end, size)))
    return found[:MAX_PLACES]


def copy_from(text, end, size):
    copy = list(text)
    for place in range(end, end + size):
        copy.append(copy[place])
    return tuple(copy[len(text) :])


def rates(found, path):
    """The share of votes of each token after `path`."""
    longest = max(match for match, _ in found)
    votes = {}
    for match, tokens in found:
        if tokens[: len(path)] == path and len(tokens) > len(path):
            votes[tokens[len(path)]] = votes.get(tokens[len(path)], 0.0) + 2.0 ** (match - longest)
    total = sum(votes.values()) + 1 / (longest + len(path))
    return {token: vote / total for token, vote in votes.items()}


@settings(max_examples=80)
@given(st.lists(TOKENS, min_size=1, max_size=60), st.integers(1, 9))
def test_a_chain_follows_the_votes(text, depth):
    draft = SuffixProposer().propose([view_of(text, depth=depth)])[0]
    found = continuations(text, depth)
    if not found:
        assert draft is None
        return
    longest = max(match for match, _ in found)
    assert longest == max(longest_match(text, end) for end in range(1, len(text)))
    assert len(draft) == min(depth, GROWTH * longest)
    for node, (token, confidence) in enumerate(zip(draft.token_ids, draft.confidences)):
        shares = rates(found, draft.token_ids[:node])
        assert shares[token] == pytest.approx(max(shares.values()))
        assert confidence == pytest.approx(shares[token])


@settings(max_examples=60)
@given(st.lists(TOKENS, min_size=4, max_size=60), st.integers(1, 5), st.integers(1, 8))
def test_a_tree_has_the_likeliest_nodes(text, depth, nodes):
    """Against the nodes of all continuations, enumerated: the same survivals, largest first."""
    shape = TreeShape(num_children=3, max_nodes=8)
    draft = SuffixProposer().propose([view_of(text, depth=depth, nodes=nodes, tree=shape)])[0]
    found = continuations(text, min(depth, nodes))
    assume(found)
    depth = min(depth, nodes, GROWTH * max(match for match, _ in found))
    survivals = {(): 1.0}
    for path in sorted({tokens[:n] for _, tokens in found for n in range(1, depth + 1)}, key=len):
        survivals[path] = survivals[path[:-1]] * rates(found, path[:-1])[path[-1]]
    expected = sorted((survival for path, survival in survivals.items() if path), reverse=True)[:nodes]
    got = []
    for node, confidence in enumerate(draft.confidences):
        parent = draft.parents[node]
        got.append(confidence * (got[parent] if parent != ROOT else 1.0))
    assert sorted(got, reverse=True) == pytest.approx(expected)
    assert len(set(zip(draft.parents, draft.token_ids))) == len(draft)


def test_a_static_shape_bounds_the_children_by_depth():
    text = [1, 2, 3, 7, 1, 2, 4, 8, 1, 2, 5, 9, 1, 2]
    draft = SuffixProposer().propose([view_of(text, nodes=16, tree=TreeShape(widths=(2, 1)))])[0]
    assert sorted(zip(draft.parents, draft.token_ids)) == [(-1, 4), (-1, 5), (0, 9), (1, 8)]


@settings(max_examples=40)
@given(st.data())
def test_a_new_proposer_says_the_same(data):
    """What is kept of a sequence is a cache: growing, shrinking and losing it change nothing."""
    kept = SuffixProposer()
    text = data.draw(st.lists(TOKENS, min_size=1, max_size=20))
    for _ in range(4):
        if data.draw(st.booleans()):
            text = text + data.draw(st.lists(TOKENS, max_size=5))
        else:
            text = text[: data.draw(st.integers(1, len(text)))]
        drafted = data.draw(st.lists(TOKENS, max_size=2))
        ours, fresh = (one.propose_after(view_of(text), drafted) for one in (kept, SuffixProposer()))
        assert (ours and (ours.token_ids, ours.confidences)) == (fresh and (fresh.token_ids, fresh.confidences))


def test_the_corpus_is_asked_only_if_the_request_says_so():
    corpus = SuffixCorpus(1 << 20)
    corpus.add(range(20))
    proposer = SuffixProposer(corpus)
    text = [99, 3, 4, 5, 6]
    assert proposer.propose([view_of(text)])[0] is None
    draft = proposer.propose([view_of(text, suffix_corpus=True)])[0]
    assert draft.token_ids == (7, 8, 9, 10, 11, 12, 13, 14)
    assert proposer.propose([view_of([99, 4, 5, 6], suffix_corpus=True)])[0] is None, "three tokens are too few"
    assert SuffixProposer().propose([view_of(text, suffix_corpus=True)])[0] is None, "an engine without a corpus"


def test_a_continuation_ends_where_the_earlier_output_ended():
    corpus = SuffixCorpus(1 << 20)
    corpus.add(range(10))
    proposer = SuffixProposer(corpus)
    assert proposer.propose([view_of([4, 5, 6, 7], suffix_corpus=True)])[0].token_ids == (8, 9)
    assert proposer.propose([view_of([6, 7, 8, 9], suffix_corpus=True)])[0] is None


def test_the_longest_unused_output_is_dropped():
    corpus = SuffixCorpus(30 * BYTES_PER_TOKEN)
    for start in (0, 100, 200):
        corpus.add(range(start, start + 10))
    assert corpus.continuations([0, 1, 2, 3], 2)[0].tokens == (4, 5)
    corpus.add(range(300, 310))
    assert corpus.num_tokens == 30
    assert corpus.continuations([0, 1, 2, 3], 2)
    assert corpus.continuations([100, 101, 102, 103], 2) == []
    corpus.add(range(1000, 1100))
    assert corpus.num_tokens == 30, "the last tokens of an output that is too large by itself"
    assert corpus.continuations([1090, 1091, 1092, 1093], 2)[0].tokens == (1094, 1095)
    tiny = SuffixCorpus(0)
    tiny.add(range(10))
    assert tiny.num_tokens == 0


def test_the_corpus_keeps_its_bound_in_bytes():
    """tracemalloc counts what it really holds: outputs of all kinds, more than fit."""
    limit = 2 << 20
    draw = random.Random(0)
    tracemalloc.start()
    corpus = SuffixCorpus(limit)
    for size in [600, 3000, 40, 5] * 8:
        corpus.add([draw.randrange(1000, 50_000) for _ in range(size)])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.5 * limit < corpus.num_bytes <= limit
    assert 0.7 * corpus.num_bytes < held <= limit
