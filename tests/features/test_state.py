"""The incremental state of penalties, DRY and loops against recounting; refusals at admission; dead ends."""

from __future__ import annotations

import numpy as np
import pytest
from fakes import FakeModel, FakeTokenizer, make_engine
from feature_oracle import dry_lengths, loops
from hypothesis import given, settings
from hypothesis import strategies as st

from decodex.errors import RequestError
from decodex.features.dry import Repetitions, z_lengths
from decodex.features.penalties import History
from decodex.features.word_automaton import WordAutomaton
from decodex.params import SamplingParams
from decodex.repetition import RepetitionStop
from decodex.token_bytes import TokenBytes

TOKENS = st.lists(st.integers(0, 4), max_size=60)


@settings(max_examples=200, deadline=None)
@given(tokens=TOKENS, cuts=st.lists(st.integers(0, 60), max_size=5), prompt=st.integers(0, 60), draft=TOKENS)
def test_history_equals_a_recount(tokens, cuts, prompt, draft):
    history = History()
    for cut in [*sorted(cuts), len(tokens)]:
        if cut >= history.num_seen:
            history.catch_up(tokens[:cut], prompt)
    ids, counts = history.with_ancestors(draft)
    output = tokens[prompt:] + draft
    found = dict(zip(ids.tolist(), counts.tolist(), strict=True))
    assert len(found) == len(ids)
    assert found == {token: output.count(token) for token in {*tokens, *draft}}
    assert dict(zip(history.ids.tolist(), history.counts.tolist(), strict=True)) == {
        token: tokens[prompt:].count(token) for token in set(tokens)
    }, "what a draft adds is not kept"


@settings(max_examples=200, deadline=None)
@given(tokens=TOKENS)
def test_z_lengths(tokens):
    for j, length in enumerate(z_lengths(tokens)[1:], 1):
        assert tokens[:length] == tokens[j : j + length]
        assert j + length == len(tokens) or tokens[length] != tokens[j + length]


@settings(max_examples=300, deadline=None)
@given(tokens=TOKENS, cuts=st.lists(st.integers(0, 60), max_size=5), breakers=st.sampled_from([[], ["d"], ["d", "e"]]))
def test_dry_equals_the_scan(tokens, cuts, breakers):
    table = TokenBytes([b"a", b"b", b"c", b"d", b"e"], frozenset())
    automaton = WordAutomaton([b.encode() for b in breakers], table, False) if breakers else None
    repetitions = Repetitions(automaton)
    for cut in [*sorted(cuts), len(tokens)]:
        if cut >= len(repetitions.tokens):
            repetitions.catch_up(tokens[:cut])
    ids, lengths = repetitions.followers(1)
    found = {i: n for i, n in zip(ids.tolist(), lengths.tolist(), strict=True) if chr(97 + i) not in breakers}
    params = SamplingParams(dry_multiplier=1.0, dry_allowed_length=1, dry_sequence_breakers=breakers)
    assert found == dry_lengths(tokens, params, FakeTokenizer(5))


def test_dry_breaker_across_tokens():
    """A breaker that is spelled over two tokens breaks like one that is one token."""
    table = TokenBytes([b"x", b"<", b">", b"y"], frozenset())
    repetitions = Repetitions(WordAutomaton([b"<>"], table, False))
    repetitions.catch_up([0, 1, 2, 3, 0, 1, 2, 3])
    assert dict(zip(*map(np.ndarray.tolist, repetitions.followers(1)), strict=True)) == {0: 1}


@settings(max_examples=300, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 2), max_size=40),
    count=st.integers(2, 4),
    span=st.integers(1, 12),
    period=st.integers(1, 6),
)
def test_repetition_stop_equals_comparing_slices(tokens, count, span, period):
    params = SamplingParams(repetition_stop=count, repetition_stop_span=span, repetition_stop_period=period)
    stop = RepetitionStop(params)
    for place, token in enumerate(tokens, 1):
        assert stop.push(token) == loops(tokens[:place], params)


def finish(params, logits_of=None, prompt=(1, 2)):
    engine = make_engine(model=FakeModel(logits_of=logits_of))
    request = engine.admission.admit(list(prompt), params)
    engine.add(request)
    while engine.has_work:
        engine.step()
    return engine.output_of(request)


def test_repetition_stop_says_why():
    def logits_of(prefix):
        logits = np.zeros(12, dtype=np.float32)
        logits[3 + len(prefix) % 2] = 9
        return logits

    output = finish(SamplingParams(temperature=0, repetition_stop=4, max_tokens=100), logits_of).outputs[0]
    assert (output.finish_reason, output.stop_reason) == ("stop", "repetition")
    assert len(output.token_ids) == 32
    held = SamplingParams(temperature=0, repetition_stop=4, max_tokens=100, min_tokens=50)
    assert len(finish(held, logits_of).outputs[0].token_ids) == 51


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"allowed_token_ids": [0], "min_tokens": 2}, "allowed_token_ids, min_tokens"),
        ({"allowed_token_ids": [1, 2], "bad_words": ["b", "c"]}, "allowed_token_ids, bad_words"),
        ({"logit_bias": {i: float("-inf") for i in range(12)}}, "logit_bias"),
        ({"no_repeat_ngram_size": 1, "max_tokens": 20, "ignore_eos": True}, "no_repeat_ngram_size"),
    ],
)
def test_a_dead_end_is_the_requests_error_and_names_the_masks(params, named):
    output = finish(SamplingParams(**{"seed": 1, **params}))
    assert output.outputs[0].finish_reason == "error"
    assert f"masked by {named}" in str(output.error)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"logit_bias": {12: 1.0}}, "logit_bias[12]"),
        ({"allowed_token_ids": [0, 12]}, "allowed_token_ids[1]"),
        ({"logprob_token_ids": [12]}, "logprob_token_ids[0]"),
        ({"logprobs": 13}, "logprobs"),
        ({"prompt_logprobs": 13}, "prompt_logprobs"),
        ({"bad_words": ["é" * 250] * 20, "n": 1}, None),
        ({"bad_words": [chr(0x3041 + i) * 250 for i in range(20)]}, "bad_words"),
        ({"max_thinking_tokens": 3}, "max_thinking_tokens"),
    ],
)
def test_refused_at_admission(params, field):
    engine = make_engine()
    if field is None:
        engine.admission.admit([1], SamplingParams(**params))
        return
    with pytest.raises(RequestError) as caught:
        engine.admission.admit([1], SamplingParams(**params))
    assert caught.value.field == field


def test_texts_need_a_vocabulary_of_bytes():
    class Opaque(FakeTokenizer):
        def token_bytes(self):
            return None

    engine = make_engine(tokenizer=Opaque())
    for params in ({"bad_words": ["a"]}, {"max_thinking_tokens": 1}, {"dry_multiplier": 1.0}):
        with pytest.raises(RequestError, match="known as bytes"):
            engine.admission.admit([1], SamplingParams(**params))
    engine.admission.admit([1], SamplingParams(dry_multiplier=1.0, dry_sequence_breakers=[]))


def test_automata_are_shared_by_requests_with_the_same_words():
    engine = make_engine()
    slots = []
    for words in (["a", "bc"], ["bc", "a"], ["a"]):
        engine.add(engine.admission.admit([1], SamplingParams(bad_words=words, max_tokens=3, temperature=0)))
    engine.step()
    [bad_words] = [f for f in engine.sampler._features if type(f).__name__ == "BadWords"]
    slots = [bad_words._slots[i].automaton for i in sorted(bad_words._slots)]
    assert slots[0] is slots[1]
    assert slots[0] is not slots[2]
