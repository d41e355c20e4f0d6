"""bad_words against a search in the decoded text, on vocabularies where words hide across tokens and spellings."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from decodex.features.word_automaton import WordAutomaton
from decodex.token_bytes import ByteDecoder, TokenBytes

TEXTS = ["the quick brown fox", "über naïve 東京 🙂 foo  bar\n", "banana bandana", "{'a': 1}"]


def byte_level() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXTS * 3, trainer)
    backend.add_tokens(["<think>", "ban dana"])
    return backend


def byte_fallback() -> tokenizers.Tokenizer:
    """Llama 2's kind: U+2581 for spaces, pieces of characters, <0xAB> for every byte."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "▁ban", "▁the", "an", "a", "b", "n",
              "d", "ana", "▁q", "東", "京", "e", "é", "▁▁", "\n", "f", "o"]  # fmt: skip
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[], byte_fallback=True, unk_token="<unk>")
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    return backend


def metaspace() -> tokenizers.Tokenizer:
    backend = byte_fallback()
    backend.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def table_of(backend: tokenizers.Tokenizer) -> TokenBytes:
    spellings = [backend.id_to_token(i) for i in range(backend.get_vocab_size())]
    decoder = ByteDecoder.of(backend.decoder.__getstate__())
    tokens = [decoder.bytes_of(spelling) for spelling in spellings]
    special = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
    return TokenBytes(tokens, special)


BACKENDS = {"byte_level": byte_level(), "byte_fallback": byte_fallback()}
TABLES = {name: table_of(backend) for name, backend in BACKENDS.items()}


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_bytes_of_tokens_are_what_they_decode_to(name, data):
    backend, table = BACKENDS[name], TABLES[name]
    ids = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=12))
    text = b"".join(table.tokens[i] for i in ids).decode("utf-8", errors="replace")
    decoded = backend.decode(ids, skip_special_tokens=False)
    if name == "byte_fallback":
        text = text.removeprefix(" ")
    if "\ufffd" not in text:
        assert decoded == text


@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_walk_that_obeys_the_masks_never_spells_a_word(name, data):
    """Soundness under every tokenization: random legal tokens, then the decoded text is searched. And no more is
    banned than must be: an illegal token would have put a word into the bytes."""
    backend, table = BACKENDS[name], TABLES[name]
    known = st.sampled_from(["ban", "ana", "東", "é", " b", "an b", "nd", "a\n", "京an", "the", "aa"])
    words = data.draw(st.lists(known, min_size=1, max_size=4))
    skip = data.draw(st.booleans())
    automaton = WordAutomaton([word.encode() for word in words], table, skip)
    likely = [i for i, t in enumerate(table.tokens) if any(byte in "".join(words).encode() for byte in t)]
    choice = st.one_of(st.sampled_from(likely), st.integers(0, len(table) - 1))
    state, ids = 0, []
    for token in data.draw(st.lists(choice, max_size=25)):
        mask = automaton.mask(state)
        is_legal = bool(mask[token // 32].item() >> (token % 32) & 1)
        spelled = b"".join(table.shown(i, skip) for i in [*ids, token])
        assert is_legal == (not any(word.encode() in spelled for word in words))
        if is_legal:
            state, hit = automaton.advance(state, token)
            assert not hit
            ids.append(token)
    text = backend.decode(ids, skip_special_tokens=skip)
    assert not any(word in text for word in words)


def test_masks_are_cached_by_state_and_bounded():
    table = TABLES["byte_level"]
    automaton = WordAutomaton([bytes(range(1, 200)), bytes(range(100, 0, -1))], table, True)
    assert automaton.mask(0) is automaton.mask(0)
    for state in range(300):
        automaton.mask(state % 290)
    assert len(automaton._masks) == 256
    assert automaton.mask(0).dtype.itemsize == 4
    assert automaton.mask(0).shape == (-(-len(table) // 32),)


def test_words_within_are_tokens_that_contain_a_word():
    table = TABLES["byte_level"]
    within = WordAutomaton([b"an", b"\n"], table, False).words_within
    expected = [any(word in token for word in (b"an", b"\n")) for token in table.tokens]
    assert np.array_equal(within, expected)


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece(), decoders.BPEDecoder(), decoders.CTC()])
def test_other_decoders_are_not_guessed_at(decoder):
    assert ByteDecoder.of(None if decoder is None else decoder.__getstate__()) is None


def test_metaspace_has_spaces():
    table = table_of(metaspace())
    assert b" ban" in table.tokens
    assert b"\xab" in table.tokens
