"""Incremental detokenization: text grows token by token, never by half a character, and loses none."""

from __future__ import annotations

from decodex.tokenizer import Tokenizer

__all__ = ["Detokenizer"]

REPLACEMENT = "\ufffd"  # how a decoder shows bytes that are not (yet) a character


class Detokenizer:
    """Turns a growing list of output tokens into text.

    Decoding a window from `_prefix` and taking off what `_prefix.._read` decodes to gives the text of the new
    tokens in context (spaces between words belong to the pair). Text that ends in a replacement character may be
    the beginning of a longer character: it is held back until more tokens or the end decide.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids: list[int] = []
        self._prefix = 0
        self._read = 0
        self._known = ""  # text of the tokens _prefix.._read

    def append(self, token_id: int) -> str:
        """Text that becomes certain with this token (may be empty)."""
        self._ids.append(token_id)
        text = self._tokenizer.decode(self._ids[self._prefix :], self._skip)
        if len(text) <= len(self._known) or text.endswith(REPLACEMENT) or not text.startswith(self._known):
            return ""
        return self._take(text)

    def flush(self) -> str:
        """The rest, once no token follows: unfinished bytes as the decoder shows them."""
        text = self._tokenizer.decode(self._ids[self._prefix :], self._skip)
        return self._take(text) if len(text) > len(self._known) else ""

    def _take(self, text: str) -> str:
        new = text[len(self._known) :]
        self._prefix = self._read
        self._read = len(self._ids)
        self._known = self._tokenizer.decode(self._ids[self._prefix : self._read], self._skip)
        return new
