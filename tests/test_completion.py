"""Text and cut points of one choice, token by token, against one-shot decoding and a naive search (K3, K4)."""

from __future__ import annotations

import itertools

import pytest
from fakes import ByteTokenizer, FakeTokenizer
from hypothesis import example, given
from hypothesis import strategies as st

from decodex import SamplingParams
from decodex.completion import Completion
from decodex.detokenizer import Detokenizer

LETTERS = FakeTokenizer()
BYTES = ByteTokenizer()


def feed(tokens, params, tokenizer=LETTERS, max_tokens=10_000):
    """Push until finished; the texts shown after each token, and the completion."""
    completion = Completion(0, 1, params, max_tokens, tokenizer)
    shown = []
    for token in tokens:
        ended = completion.push(token)
        shown.append(completion.text)
        if ended:
            return shown, completion
    completion.finish("abort")
    return shown, completion


def oracle(tokens, stops, min_tokens):
    """Finish index, text and reason, by decoding every prefix anew."""
    for count in range(1, len(tokens) + 1):
        if count <= min_tokens:
            continue
        if tokens[count - 1] == 0:
            return count, LETTERS.decode(tokens[: count - 1]), None
        text, before = LETTERS.decode(tokens[:count]), LETTERS.decode(tokens[: count - 1])
        hits = [(text.find(s, max(0, len(before) - len(s) + 1)), -len(s), s) for s in stops]
        hits = sorted(h for h in hits if h[0] >= 0)
        if hits:
            return count, text[: hits[0][0]], hits[0][2]
    return len(tokens), LETTERS.decode(tokens), "none"


@given(
    tokens=st.lists(st.integers(0, 4), min_size=1, max_size=30),
    stops=st.lists(st.text("bcde", min_size=1, max_size=4), max_size=3),
    min_tokens=st.integers(0, 5),
)
@example(tokens=[1, 2, 1, 2, 3], stops=["bcd", "cbcd"], min_tokens=0)
def test_cut_is_where_a_naive_search_finds_it(tokens, stops, min_tokens):
    shown, completion = feed(tokens, SamplingParams(stop=stops, min_tokens=min_tokens))
    count, text, reason = oracle(tokens, stops, min_tokens)
    assert completion.token_ids == tokens[:count]
    assert completion.text == text
    if reason == "none":
        assert completion.finish_reason == "abort"
    else:
        assert (completion.finish_reason, completion.stop_reason) == ("stop", reason)
    for earlier, later in itertools.pairwise(shown):
        assert later.startswith(earlier), "text that was shown is taken back"
    assert all(text.startswith(s) for s in shown)


@pytest.mark.parametrize("include", [False, True])
def test_stop_string_and_stop_token_in_output(include):
    params = SamplingParams(stop="cd", include_stop_str_in_output=include)
    assert feed([1, 2, 3, 4], params)[1].text == ("bcd" if include else "b")
    params = SamplingParams(stop_token_ids=[3], include_stop_str_in_output=include)
    completion = feed([1, 3, 4], params)[1]
    assert (completion.text, completion.stop_reason) == ("bd" if include else "b", 3)
    assert completion.token_ids == [1, 3]


def test_length_beats_nothing_and_stop_beats_length():
    assert feed([1, 2, 3], SamplingParams(), max_tokens=2)[1].finish_reason == "length"
    assert feed([1, 0, 3], SamplingParams(), max_tokens=2)[1].finish_reason == "stop"
    assert feed([1, 2, 3], SamplingParams(stop="c"), max_tokens=2)[1].finish_reason == "stop"


def test_ignore_eos_and_special_tokens_in_text():
    completion = feed([1, 0, 2], SamplingParams(ignore_eos=True, skip_special_tokens=False))[1]
    assert completion.text == "bac"


@given(text=st.text(min_size=1, max_size=40))
@example(text="na\u00efve \U0001f9d1\u200d\U0001f680 \u4f60\u597d")
@example(text="\ufffd\ufffda\ufffd")
def test_detokenizer_never_emits_half_a_character(text):
    """Byte tokens: every delta is whole characters, and together they are the text."""
    try:
        data = list(text.encode())
    except UnicodeEncodeError:
        return
    detokenizer = Detokenizer(BYTES, True)
    deltas = [detokenizer.append(byte) for byte in data]
    deltas.append(detokenizer.flush())
    assert "".join(deltas) == text
    assert "\ufffd" in text or all("\ufffd" not in delta for delta in deltas)


@given(data=st.lists(st.integers(0, 256), max_size=40))
def test_detokenizer_equals_one_shot_on_any_bytes(data):
    """Invalid bytes and special tokens between them: the deltas still join to the one-shot decoding."""
    detokenizer = Detokenizer(BYTES, True)
    text = "".join([*(detokenizer.append(token) for token in data), detokenizer.flush()])
    assert text == BYTES.decode(data)
