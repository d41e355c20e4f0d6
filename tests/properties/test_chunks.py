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


@pytest.mark.xfail(strict=True, reason="text that ends in U+FFFD is held back as a whole, and decoded with every token")
@pytest.mark.parametrize("kind", ["invalid", "replacement"])
def test_broken_bytes_are_shown_as_they_come(kind):
    """A model that only says broken bytes, or U+FFFD itself: no more than one character is held back, and what is
    decoded for each token doesn't grow."""
    data = [0xFF] * 600 if kind == "invalid" else list(b"\xef\xbf\xbd") * 200

    class Counting(ByteTokenizer):
        longest = 0

        def decode(self, ids, skip_special_tokens=True):
            self.longest = max(self.longest, len(ids))
            return super().decode(ids, skip_special_tokens)

    tokenizer = Counting()
    completion = Completion(0, 1, NO_STOPS, 10_000, tokenizer)
    shown, whole = [], []
    for count, byte in enumerate(data, 1):
        completion.push(byte)
        shown.append(completion.text)
        whole.append(BYTES.decode(data[:count]))
    completion.finish("abort")
    assert completion.text == whole[-1]
    check_growth(shown, whole, completion.text, ())
    assert all(len(at_once) - len(text) <= 1 for text, at_once in zip(shown, whole, strict=True))
    assert tokenizer.longest < 100


class FallbackTokenizer(ByteTokenizer):
    """SentencePiece's bytes as the `tokenizers` library decodes them: `a`, `b`, and <0x00> .. <0xFF> from id 2 on.

    A run of byte tokens that is no valid text becomes one U+FFFD a byte, whole characters among them.
    """

    special_ids = eos_token_ids = frozenset()

    def __init__(self):
        super().__init__()
        self.vocab_size = 258
        vocab = {"a": 0, "b": 1, **{f"<0x{byte:02X}>": byte + 2 for byte in range(256)}}
        self._backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="a"))
        self._backend.decoder = tokenizers.decoders.Sequence(
            [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
        )

    def decode(self, ids, skip_special_tokens=True):
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)


FALLBACK = FallbackTokenizer()


@given(text=st.text("aé€😀中", max_size=12))
def test_byte_fallback_of_valid_text(text):
    """Characters that are bytes beside letters that are tokens, whole."""
    tokens = [t for c in text for t in ([0] if c == "a" else [byte + 2 for byte in c.encode()])]
    detokenizer = Detokenizer(FALLBACK, True)
    deltas = [*map(detokenizer.append, tokens), detokenizer.flush()]
    assert "".join(deltas) == text
    assert all("\ufffd" not in delta for delta in deltas)


@pytest.mark.xfail(strict=True, reason="text that is not the known text prolonged stops a stream until its end")
@given(
    broken=st.lists(st.sampled_from([0xFF, 0xC3, 0xE4, 0x80]), min_size=1, max_size=3), whole=st.text("é中", max_size=3)
)
@example(broken=[0xFF], whole="中")
def test_byte_fallback_goes_on_after_broken_bytes(broken, whole):
    """A broken byte spoils the run of bytes that it ends; the letters behind it must be shown as they come."""
    completion = Completion(0, 1, NO_STOPS, 10_000, FALLBACK)
    for byte in [*whole.encode(), *broken]:
        completion.push(byte + 2)
    for count in range(1, 9):
        completion.push(1)
        assert completion.text.endswith("b" * count)
    before = completion.text
    completion.finish("abort")
    assert completion.text == before


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
    whole = real_tokenizer.decode(tokens, skip)
    assert completion.text == whole
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
