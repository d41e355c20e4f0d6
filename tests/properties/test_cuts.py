"""K3, cut points: however tokens are split into accepted runs, an answer ends where one token at a time ends it.

The model wants a script, token by token; drafts that know the script make the accepted runs.
"""

from __future__ import annotations

import pytest
from fakes import ByteTokenizer, TextTokenizer
from hypothesis import example, given, settings
from hypothesis import strategies as st
from properties.every_field import TEXTS
from properties.scripted import RUNS, check_splits, compositions, cut_params

from decodex.params import SamplingParams

SHORT = {
    "script": st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7]), min_size=6, max_size=6),
    "params": cut_params(st.text("abc", min_size=1, max_size=5), st.integers(2, 6)),
    "decoys": st.booleans(),
}
LONG = {
    "script": st.lists(st.integers(0, 8), min_size=40, max_size=40),
    "params": cut_params(st.text("abc ", min_size=2, max_size=9), st.integers(2, 40)),
    "splits": st.lists(RUNS, min_size=2, max_size=4),
    "decoys": st.booleans(),
}
BYTES = {
    "text": st.text("aé€😀x\x00", max_size=12).map(str.encode),
    "noise": st.lists(st.integers(0, 256), max_size=6),
    "params": cut_params(st.sampled_from(["é", "😀", "aé", "€€", "x", "é😀a"]), st.integers(2, 40)),
    "splits": st.lists(RUNS, min_size=2, max_size=4),
    "decoys": st.booleans(),
}


@settings(max_examples=50)
@given(**SHORT)
@example(
    script=[1, 2, 4, 5, 1, 1],
    params=SamplingParams(temperature=0, seed=1, max_tokens=6, stop=["bb", "abba"]),
    decoys=False,
)
def test_every_split_of_a_short_script(script, params, decoys):
    check_splits(script, params, compositions(5), TextTokenizer(TEXTS), decoys)


@settings(max_examples=40)
@given(**LONG)
def test_random_splits_of_a_long_script(script, params, splits, decoys):
    check_splits(script, params, [[1] * 39, *splits, [39]], TextTokenizer(TEXTS), decoys)


@settings(max_examples=40)
@given(**BYTES)
def test_splits_within_characters(text, noise, params, splits, decoys):
    """Byte tokens: runs end within characters, some bytes are no character at all."""
    script = [*text, *noise, *text, *noise]
    script = (script + [65] * 40)[:40]
    check_splits(script, params, [[1] * 39, *splits, [39]], ByteTokenizer(), decoys)


@pytest.mark.slow
@settings(max_examples=1500)
@given(**SHORT)
def test_every_split_of_a_short_script_in_a_sweep(script, params, decoys):
    check_splits(script, params, compositions(5), TextTokenizer(TEXTS), decoys)


@pytest.mark.slow
@settings(max_examples=1500)
@given(**BYTES)
def test_splits_within_characters_in_a_sweep(text, noise, params, splits, decoys):
    script = ([*text, *noise, *text, *noise] + [65] * 40)[:40]
    check_splits(script, params, [[1] * 39, *splits, [39]], ByteTokenizer(), decoys)


@pytest.mark.parametrize("min_tokens", [0, 1, 5, 6])
@pytest.mark.parametrize("num_drafts", [0, 1, 5, 50])
def test_least_and_most_tokens(min_tokens, num_drafts):
    """A model that always ends at once: exactly min_tokens, then the end, or the length; drafts of any length."""
    params = SamplingParams(temperature=0.0, seed=1, max_tokens=6, min_tokens=min_tokens)
    [output] = check_splits([0] * 60, params, [[num_drafts + 1] * 12], TextTokenizer(TEXTS))
    assert len(output.outputs[0].token_ids) == min(min_tokens + 1, 6)
