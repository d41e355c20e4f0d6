"""Log-probabilities in OpenAI's two shapes, with each token's right bytes. JSON has no infinity: -9999.0 is -inf."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from decodex.outputs import Logprob
from decodex.tokenizer import Tokenizer

__all__ = ["TokenTexts", "chat_logprobs", "completion_logprobs", "prompt_logprobs"]

LOWEST = -9999.0
Entries = Mapping[int, Logprob]


class TokenTexts:
    """What tokens are as bytes and as names, for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._all: list[bytes] | None = None if tokenizer.is_exact_in_bytes else tokenizer.token_bytes()

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of a token, special ones as they are spelled."""
        if self._tokenizer.is_exact_in_bytes:
            return self._tokenizer.bytes_of(token_id, False)
        if self._all is not None and token_id < len(self._all):
            return self._all[token_id]
        return self._tokenizer.decode([token_id], False).encode()

    def name_of(self, token_id: int) -> str:
        """A token's text; one that is no text by itself is named by its bytes, so that names differ."""
        raw = self.bytes_of(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def is_shown(self, token_id: int, skip_special_tokens: bool) -> bool:
        """Whether a token adds to the text."""
        return not (skip_special_tokens and token_id in self._tokenizer.special_ids)


def _finite(value: float) -> float:
    return max(value, LOWEST)


def chat_logprobs(
    token_ids: Sequence[int],
    logprobs: Sequence[Entries],
    num_top: int,
    also: Collection[int],
    texts: TokenTexts,
    skip_special_tokens: bool,
) -> dict[str, Any]:
    """One entry for each token; `bytes` is what it adds to the text, null where it is not shown. Above the chosen one
    are the `num_top` most likely ones and those asked for by id (`also`)."""

    def entry(token_id: int, known: Logprob) -> dict[str, Any]:
        is_shown = texts.is_shown(token_id, skip_special_tokens)
        return {
            "token": known.decoded_token,
            "logprob": _finite(known.logprob),
            "bytes": list(texts.bytes_of(token_id)) if is_shown else None,
        }

    content = []
    for token_id, entries in zip(token_ids, logprobs, strict=True):
        top = [entry(other, known) for other, known in _wanted(entries, num_top, also)]
        content.append({**entry(token_id, entries[token_id]), "top_logprobs": top})
    return {"content": content, "refusal": None}


def _wanted(entries: Entries, num_top: int, also: Collection[int]) -> Iterable[tuple[int, Logprob]]:
    """The most likely ones (-1: all), then those asked for by id."""
    for token_id, known in entries.items():
        if num_top < 0 or known.rank <= num_top or token_id in also:
            yield token_id, known


def completion_logprobs(
    token_ids: Sequence[int],
    logprobs: Sequence[Entries | None],
    num_top: int,
    also: Collection[int],
    texts: TokenTexts,
    start: TextOffset,
) -> dict[str, Any]:
    """The older shape: four lists with an item for each token. `start` is moved on."""
    tokens, offsets = [], []
    values: list[float | None] = []
    tops: list[dict[str, float] | None] = []
    for token_id, entries in zip(token_ids, logprobs, strict=True):
        tokens.append(texts.name_of(token_id))
        offsets.append(start.characters)
        start.add(token_id, texts)
        values.append(None if entries is None else _finite(entries[token_id].logprob))
        if entries is None:
            tops.append(None)
        else:
            found = {other: known.logprob for other, known in _wanted(entries, num_top, also)}
            found.setdefault(token_id, entries[token_id].logprob)
            tops.append({texts.name_of(other): _finite(value) for other, value in found.items()})
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


class TextOffset:
    """Where in the text a token begins: characters that were complete before it."""

    def __init__(self, skip_special_tokens: bool, characters: int = 0) -> None:
        self.characters = characters
        self._skip = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_id: int, texts: TokenTexts) -> None:
        """Move past a token."""
        if texts.is_shown(token_id, self._skip):
            self.characters += len(self._decoder.decode(texts.bytes_of(token_id)))


def prompt_logprobs(logprobs: Sequence[Entries | None] | None) -> list[dict[str, Any] | None] | None:
    """Those of a prompt's tokens, by token id."""
    if logprobs is None:
        return None
    return [
        None
        if entries is None
        else {
            str(token_id): {"logprob": _finite(known.logprob), "rank": known.rank, "decoded_token": known.decoded_token}
            for token_id, known in entries.items()
        }
        for entries in logprobs
    ]
