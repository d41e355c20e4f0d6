"""Grammar masks by row: each row's mask is what a new matcher says after the row's own tokens, drafts included."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from fakes import ByteTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from decodex.batch import Rows
from decodex.errors import RequestError
from decodex.features.feature import PreparedFeature
from decodex.features.grammar import GrammarMasks
from decodex.features.pipeline import build_features
from decodex.features.vocabulary import Vocabulary
from decodex.functional import _Row
from decodex.grammars import Grammars
from decodex.params import SamplingParams

V = 257
EOS = 256
VOCABULARY = Vocabulary(ByteTokenizer(), V)
GRAMMARS = Grammars(VOCABULARY)
FREE = SamplingParams()
PARAMS = [
    SamplingParams(structured_outputs={"regex": "(ab|a)*c"}),
    SamplingParams(structured_outputs={"regex": "[ab]{2,5}", "backend": "outlines"}),
    SamplingParams(structured_outputs={"grammar": 'root ::= "a" root "b" | "c"', "backend": "xgrammar"}),
]


class ConstrainedRow(_Row):
    """A sequence with a grammar."""

    constrained = None


def sequence(params, tokens):
    row = ConstrainedRow([1, *tokens], 1, None)
    grammar = GRAMMARS.compile(params)
    if grammar is not None:
        text = grammar.begin(100)
        for token in tokens:
            text.push(token)
        object.__setattr__(row, "constrained", text)
    return row


def legal_after(params, tokens):
    """By a new matcher that is given everything; None after a token that it refuses."""
    grammar = GRAMMARS.compile(params)
    matcher = grammar.compiled.matcher()
    if not all(token != EOS and matcher.accept(token) for token in tokens):
        return set()
    row = np.zeros(grammar.vocabulary.num_words, dtype=np.int32)
    assert matcher.fill(row)
    return set(grammar.vocabulary.unpack(row))


def rows_of(sequences, paths):
    """paths[s]: the draft paths of sequence s; its root row comes first."""
    slots, ancestors, owners = [], [], []
    for slot, (row, of_slot) in enumerate(zip(sequences, paths, strict=True)):
        for path in [(), *of_slot]:
            slots.append(slot)
            ancestors.append(tuple(path))
            owners.append(row)
    return Rows(
        slots=torch.tensor(slots),
        positions=torch.tensor([len(s.token_ids) + len(a) for s, a in zip(owners, ancestors)]),
        slots_host=slots,
        num_output_host=[len(s.token_ids) - 1 + len(a) for s, a in zip(owners, ancestors)],
        ancestors=ancestors,
        sequences=owners,
    )


def committed(params, choices):
    """A few tokens that the grammar allows, walked by `choices`."""
    tokens = []
    for choice in choices:
        legal = sorted(legal_after(params, tokens) - {EOS})
        if not legal:
            break
        tokens.append(legal[choice % len(legal)])
        if not legal_after(params, tokens) - {EOS}:
            return tokens[:-1]
    return tokens


TREES = st.lists(st.lists(st.sampled_from([97, 98, 99, 99, EOS, 200]), min_size=1, max_size=3), max_size=5)


def with_prefixes(paths):
    return sorted({tuple(path[:end]) for path in paths for end in range(1, len(path) + 1)}, key=len)


@settings(max_examples=60)
@given(
    kinds=st.lists(st.sampled_from([*PARAMS, FREE]), min_size=1, max_size=4),
    walks=st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=4, max_size=4),
    trees=st.lists(TREES, min_size=4, max_size=4),
    prepared=st.booleans(),
)
def test_each_row_is_masked_by_its_own_tokens(kinds, walks, trees, prepared):
    outputs = [committed(params, walk) if params is not FREE else [] for params, walk in zip(kinds, walks)]
    sequences = [sequence(params, tokens) for params, tokens in zip(kinds, outputs, strict=True)]
    rows = rows_of(sequences, [with_prefixes(tree) for tree in trees[: len(kinds)]])
    feature = GrammarMasks()
    for slot, params in enumerate(kinds):
        assert feature.add(slot, params) is (params is not FREE)
    for _ in range(2):  # drafts leave nothing behind
        logits = torch.zeros(len(rows.slots_host), V)
        if prepared:
            feature.prepare(rows)
        feature.apply(logits, rows)
        assert not rows.errors
        assert not rows.begun
        for at, slot in enumerate(rows.slots_host):
            legal = set(range(V))
            if kinds[slot] is not FREE:
                legal = legal_after(kinds[slot], [*outputs[slot], *rows.ancestors[at]])
            assert set(torch.nonzero(logits[at] == 0).flatten().tolist()) == legal


def test_nothing_is_done_without_a_constraint():
    feature = GrammarMasks()
    feature.add(0, FREE)
    rows = rows_of([sequence(FREE, [3])], [[]])
    feature.prepare(rows)
    assert rows.begun == {}
    assert feature._worker is None


def test_a_removed_slot_is_free():
    feature = GrammarMasks()
    feature.add(0, PARAMS[0])
    feature.remove(0)
    logits = torch.zeros(1, V)
    feature.apply(logits, rows_of([sequence(FREE, [3])], [[]]))
    assert (logits == 0).all()


def test_a_fork_has_no_worker_and_needs_none():
    feature = GrammarMasks()
    feature.add(0, PARAMS[0])
    rows = rows_of([sequence(PARAMS[0], [])], [[]])
    feature.prepare(rows)
    feature.apply(torch.zeros(1, V), rows)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            feature.prepare(rows)
            os.write(writer, b"none" if not rows.begun else b"some")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 10) == b"none"
    os.close(reader)
    os.close(writer)


def test_it_is_the_last_feature_and_the_only_one_that_prepares():
    features = build_features(VOCABULARY)
    assert [isinstance(feature, PreparedFeature) for feature in features] == [False] * (len(features) - 1) + [True]


def test_stop_tokens_of_a_structural_tag_are_legal_where_the_end_is():
    tag = {"type": "structural_tag", "format": {"type": "any_text"}}
    params = SamplingParams(structured_outputs={"structural_tag": tag}, stop_token_ids=[EOS])
    try:
        grammar = GRAMMARS.compile(params)
    except RequestError as error:
        pytest.skip(str(error))
    assert set(grammar.vocabulary.unpack(grammar.stops)) == {EOS}
