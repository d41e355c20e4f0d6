"""Incremental detokenization: text grows token by token, never by half a character, and loses none."""

from __future__ import annotations

import codecs
import functools
from collections.abc import Callable

from decodex.token_bytes import without_leading
from decodex.tokenizer import Tokenizer

__all__ = ["Detokenizer"]

REPLACEMENT = "\ufffd"  # how a decoder shows bytes that are not (yet) a character
MAX_HELD = 3  # tokens that may be a character's beginning: it has four bytes at most


class Detokenizer:
    """Turns a growing list of output tokens into the text that `Tokenizer.decode` gives for all of them."""

    def __init__(
        self, tokenizer: Tokenizer, skip_special_tokens: bool, bytes_of: Callable[[int], bytes] | None = None
    ) -> None:
        """`bytes_of`: take the text for these bytes of the tokens, as they stand (a text that a grammar has read)."""
        self._text: _Bytes | _Windows
        if bytes_of is not None:
            self._text = _Bytes(bytes_of, 0)
        elif tokenizer.is_exact_in_bytes:
            known = functools.partial(tokenizer.bytes_of, skip_special_tokens=skip_special_tokens)
            self._text = _Bytes(known, tokenizer.num_stripped)
        else:
            self._text = _Windows(tokenizer, skip_special_tokens)

    def append(self, token_id: int) -> str:
        """Text that becomes certain with this token (may be empty)."""
        return self._text.append(token_id)

    def flush(self) -> str:
        """The rest, once no token follows: unfinished bytes as the decoder shows them."""
        return self._text.flush()


class _Bytes:
    """Tokens that are bytes: only an unfinished character is held back."""

    def __init__(self, bytes_of: Callable[[int], bytes], num_stripped: int) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_stripped = num_stripped

    def append(self, token_id: int) -> str:
        added = self._bytes_of(token_id)
        if self._num_stripped:
            rest = without_leading(added, self._num_stripped)
            self._num_stripped = 0 if rest else self._num_stripped - len(added)
            added = rest
        return self._decoder.decode(added)

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class _Windows:
    """Any other decoder. Decoding a window from `_prefix` and taking off what `_prefix.._read` decodes to gives the
    text of the new tokens in context (spaces between words belong to the pair). A few tokens whose text ends in a
    replacement character may be the beginning of a longer character and are held back."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids: list[int] = []  # from _prefix on
        self._num_known = 0
        self._known = ""  # text of the known ones
        self._num_held = 0  # tokens in a row whose text may be the beginning of a character

    def append(self, token_id: int) -> str:
        if self._skip and token_id in self._tokenizer.special_ids:
            return ""
        self._ids.append(token_id)
        text = self._tokenizer.decode(self._ids, self._skip)
        if not self._is_longer(text):
            return ""
        if text.endswith(REPLACEMENT) and self._num_held < MAX_HELD:
            self._num_held += 1
            return ""
        return self._take(text)

    def flush(self) -> str:
        text = self._tokenizer.decode(self._ids, self._skip)
        return self._take(text) if self._is_longer(text) else ""

    def _is_longer(self, text: str) -> bool:
        return len(text) > len(self._known)

    def _take(self, text: str) -> str:
        new = text[len(self._known) :]
        self._num_held = 0
        self._ids = self._ids[self._num_known :]
        self._num_known = len(self._ids)
        self._known = self._tokenizer.decode(self._ids, self._skip)
        return new
