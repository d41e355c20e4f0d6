"""K4, chunk boundaries: what is streamed is the one-shot text, cut somewhere; it only grows and is never taken back."""

from __future__ import annotations

import itertools

import pytest
import tokenizers
from fakes import ByteTokenizer, TextTokenizer
from hypothesis import example, given, settings
from hypothesis import strategies as st
from properties.every_field import TEXTS
from properties.scripted import RUNS, check_splits, cut_params
from tokenizers import decoders

from decodex.completion import Completion
from decodex.detokenizer import Detokenizer
from decodex.errors import ModelError
from decodex.models.source import resolve_model
from decodex.params import SamplingParams
from decodex.tokenizer import Tokenizer

BYTES = ByteTokenizer()
NO_STOPS = SamplingParams(temperature=0.0)
# bytes that begin, continue and break characters
MIXED_BYTES = st.lists(
    st.one_of(
        st.sampled_from([0x41, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xFF, 0xED, 256]),
        st.integers(0, 256),
    ),
    max_size=24,
)


def check_growth(shown: list[str], whole: list[str], final: str, stops) -> None:
    """`shown` and `whole`: what is shown, and the tokens so far decoded at once, after each chunk."""
    longest = max((len(stop) for stop in stops), default=1)
    for earlier, later in itertools.pairwise([*shown, final]):
        assert later.startswith(earlier), "text is taken back"
    for text, at_once in zip(shown, whole, strict=True):
        assert at_once.startswith(text), "text that the tokens don't say"
        held = at_once[len(text) :].rstrip("\ufffd")  # of U+FFFD: test_broken_bytes_are_shown_as_they_come
        assert len(held) < longest, f"{held!r} is held back (longest stop string: {longest})"


@settings(max_examples=150)
@given(tokens=MIXED_BYTES, stops=st.lists(st.text("Aé€😀", min_size=1, max_size=3), max_size=2))
def test_a_completion_grows_by_whole_characters(tokens, stops):
    params = SamplingParams(stop=stops, ignore_eos=True)
    completion = Completion(0, 1, params, 10_000, BYTES)
    shown, whole = [], []
    for count, token in enumerate(tokens, 1):
        if completion.push(token):
            break
        shown.append(completion.text)
        whole.append(BYTES.decode(tokens[:count]))
    else:
        completion.finish("abort")
        assert completion.text == BYTES.decode(tokens)
    check_growth(shown, whole, completion.text, stops)


@settings(max_examples=25)
@given(
    tokens=MIXED_BYTES,
    params=cut_params(st.text("Aé€", min_size=1, max_size=3), st.integers(2, 30)),
    splits=st.lists(RUNS, min_size=1, max_size=3),
)
def test_streams_through_the_engine(tokens, params, splits):
    """Chunks are accepted runs; the snapshots of every step are looked at, the final ones by test_cuts."""
    streamed: list[list] = []
    finals = check_splits((tokens + [65] * 30)[:30], params, splits, BYTES, streamed=streamed)
    for index, final in enumerate(finals):
        choices = [outputs[index].outputs[0] for outputs in streamed]
        running = [choice for choice in choices if choice.finish_reason is None]
        whole = [BYTES.decode(choice.token_ids, params.skip_special_tokens) for choice in running]
        check_growth([choice.text for choice in running], whole, final.outputs[0].text, params.stop)
        for earlier, later in itertools.pairwise(choices):
            assert later.token_ids[: len(earlier.token_ids)] == earlier.token_ids


@given(tokens=st.lists(st.integers(0, 11), max_size=30), skip=st.booleans())
def test_tokens_of_several_characters(tokens, skip):
    texts = TextTokenizer(TEXTS)
    detokenizer = Detokenizer(texts, skip)
    assert "".join([*map(detokenizer.append, tokens), detokenizer.flush()]) == texts.decode(tokens, skip)


@pytest.mark.parametrize("kind", ["invalid", "replacement"])
def test_broken_bytes_are_shown_as_they_come(kind):
    """A model that only says broken bytes, or U+FFFD itself: no more than one character is held back."""
    data = [0xFF] * 600 if kind == "invalid" else list(b"\xef\xbf\xbd") * 200
    completion = Completion(0, 1, NO_STOPS, 10_000, BYTES)
    shown, whole = [], []
    for count, byte in enumerate(data, 1):
        completion.push(byte)
        shown.append(completion.text)
        whole.append(BYTES.decode(data[:count]))
    completion.finish("abort")
    assert completion.text == whole[-1]
    check_growth(shown, whole, completion.text, ())
    assert all(len(at_once) - len(text) <= 1 for text, at_once in zip(shown, whole, strict=True))


# `<s>`, `a`, `b`, a space, ` b`, and the bytes from id 5 on; as SentencePiece's vocabularies are written
PIECES = ["<s>", "a", "b", "▁", "▁b", *(f"<0x{byte:02X}>" for byte in range(256))]
FIRST_BYTE = 5
STRIP, FALLBACK, FUSE = decoders.Strip(" ", 1, 0), decoders.ByteFallback(), decoders.Fuse()
DECODERS = {
    "llama": [decoders.Replace("▁", " "), FALLBACK, FUSE, STRIP],
    "gemma": [decoders.Replace("▁", " "), FALLBACK, FUSE],
    "metaspace": [decoders.Metaspace(), FALLBACK, FUSE],
    "late": [FALLBACK, FUSE, decoders.Replace("▁", " ")],
}


@pytest.fixture(scope="module")
def fallback_tokenizers(tmp_path_factory) -> dict[str, Tokenizer]:
    found = {}
    for name, parts in DECODERS.items():
        folder = tmp_path_factory.mktemp(name)
        vocab = {piece: i for i, piece in enumerate(PIECES)}
        backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="<s>"))
        backend.add_special_tokens(["<s>"])
        backend.decoder = decoders.Sequence(parts)
        backend.save(str(folder / "tokenizer.json"))
        found[name] = Tokenizer(folder)
    return found


@pytest.mark.parametrize("name", DECODERS)
@given(text=st.text("aé€😀中", max_size=12), skip=st.booleans(), data=st.data())
def test_byte_fallback_of_valid_text(fallback_tokenizers, name, text, skip, data):
    """Characters that are bytes beside letters and spaces that are tokens, whole; as the library decodes them."""
    tokenizer = fallback_tokenizers[name]
    assert tokenizer.is_exact_in_bytes == (name in ("llama", "gemma"))
    parts = [[1] if c == "a" else [byte + FIRST_BYTE for byte in c.encode()] for c in text]
    for extra in data.draw(st.lists(st.sampled_from([0, 2, 3, 4]), max_size=6)):
        parts.insert(data.draw(st.integers(0, len(parts))), [extra])
    tokens = [token for part in parts for token in part]
    detokenizer = Detokenizer(tokenizer, skip)
    deltas = [*map(detokenizer.append, tokens), detokenizer.flush()]
    whole = tokenizer._backend.decode(tokens, skip_special_tokens=skip)
    assert "".join(deltas) == whole == tokenizer.decode(tokens, skip)
    assert all("\ufffd" not in delta for delta in deltas)


@pytest.mark.parametrize("name", DECODERS)
def test_a_token_without_text_before_a_character_of_four_bytes(fallback_tokenizers, name):
    """A leading space that the decoder drops counted as a part of the character."""
    detokenizer = Detokenizer(fallback_tokenizers[name], False)
    tokens = [3, *(byte + FIRST_BYTE for byte in "😀".encode())]
    deltas = [*map(detokenizer.append, tokens), detokenizer.flush()]
    assert "".join(deltas).strip() == "😀"


@given(
    broken=st.lists(st.sampled_from([0xFF, 0xC3, 0xE4, 0x80]), min_size=1, max_size=3), whole=st.text("é中", max_size=3)
)
@example(broken=[0xFF], whole="中")
def test_byte_fallback_goes_on_after_broken_bytes(fallback_tokenizers, broken, whole):
    """A broken byte spoils neither the characters before it (the library takes these back) nor the letters behind."""
    tokenizer = fallback_tokenizers["llama"]
    completion = Completion(0, 1, NO_STOPS, 10_000, tokenizer)
    data = [*whole.encode(), *broken]
    for byte in data:
        completion.push(byte + FIRST_BYTE)
    for count in range(1, 9):
        completion.push(2)
        assert completion.text.endswith("b" * count)
    before = completion.text
    completion.finish("abort")
    assert completion.text == before == bytes([*data, *b"bbbbbbbb"]).decode(errors="replace")
    assert before == tokenizer.decode(completion.token_ids)


@pytest.fixture(scope="module")
def real_tokenizer() -> Tokenizer:
    try:
        return Tokenizer(resolve_model("smollm2-135m").path)
    except ModelError as error:
        pytest.skip(f"the demo model can't be fetched here: {error}")


@pytest.fixture(scope="module")
def partial_tokens(real_tokenizer) -> list[int]:
    """Tokens that are not whole characters by themselves."""
    table = real_tokenizer.token_bytes()
    return [token for token, text in enumerate(table) if text and "\ufffd" in text.decode(errors="replace")]


@pytest.mark.real_model
@settings(max_examples=80)
@given(data=st.data())
def test_real_tokenizer(real_tokenizer, partial_tokens, data):
    """Any token ids, many of them parts of characters, special ones among them."""
    token = st.one_of(
        st.sampled_from(partial_tokens), st.integers(0, real_tokenizer.vocab_size - 1), st.integers(0, 20)
    )
    tokens = data.draw(st.lists(token, max_size=24))
    skip = data.draw(st.booleans())
    completion = Completion(0, 1, SamplingParams(ignore_eos=True, skip_special_tokens=skip), 10_000, real_tokenizer)
    shown = []
    for token in tokens:
        completion.push(token)
        shown.append(completion.text)
    completion.finish("abort")
    whole = real_tokenizer._backend.decode(tokens, skip_special_tokens=skip)
    assert completion.text == whole == real_tokenizer.decode(tokens, skip)
    for earlier, later in itertools.pairwise([*shown, whole]):
        assert later.startswith(earlier)


@pytest.mark.real_model
@settings(max_examples=80)
@given(text=st.text(max_size=60))
def test_real_tokenizer_gives_texts_back(real_tokenizer, text):
    """Encoded texts come back character by character, without a U+FFFD of our own."""
    try:
        tokens = real_tokenizer.encode(text, False)
    except UnicodeEncodeError:
        return
    whole = real_tokenizer.decode(tokens, False)
    detokenizer = Detokenizer(real_tokenizer, False)
    deltas = [*map(detokenizer.append, tokens), detokenizer.flush()]
    assert "".join(deltas) == whole
    assert "\ufffd" in whole or all("\ufffd" not in delta for delta in deltas)
