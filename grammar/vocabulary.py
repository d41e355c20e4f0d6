"""The model's vocabulary as the grammar libraries see it: bytes per token, special tokens, ends."""

from __future__ import annotations

import bisect
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decodex.grammar.matcher import MaskRow

__all__ = ["GrammarVocabulary", "TokensAround"]

_MAX_AROUND = 1024  # texts

_UTF8_BYTES = {bytes([byte]) for byte in range(0xF5) if byte not in (0xC0, 0xC1)}


@dataclass(frozen=True)
class TokensAround:
    """Tokens of text against a text that is forced."""

    within: MaskRow  # begin the text, or are it
    beyond: NDArray[np.int64]  # go on after the text,
    rests: NDArray[np.int64]  # and a token that spells what comes after it, for each of them
    unspelt: list[tuple[int, bytes]]  # go on after it in a way that no token spells, ordered by that; and the way
    starts: NDArray[np.int64]  # the longest token that begins that way, for each of them


class GrammarVocabulary:
    """Tokens as raw bytes, from which each library's own tokenizer object is built once, when first used.

    `tokens[i]` is what token i adds to a text: byte-level and byte-fallback spellings are resolved by the caller.
    Special tokens and ends keep their spelling there and are never part of a constrained text; so are tokens without
    bytes. One per engine; any thread may use it.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        special_ids: frozenset[int],
        eos_token_ids: frozenset[int],
        encode: Callable[[str], list[int]],
    ) -> None:
        self.tokens = [bytes(token) for token in tokens]  # [V]
        self.size = len(self.tokens)
        self.num_words = (self.size + 31) // 32
        self.eos_token_ids = frozenset(i for i in eos_token_ids if 0 <= i < self.size)
        self.special_ids = frozenset(i for i in special_ids if 0 <= i < self.size) | self.eos_token_ids
        self.encode = encode  # text -> ids, no special tokens added
        if not self.eos_token_ids:
            raise ValueError("a constrained output needs an end: expected at least one eos_token_id in the vocabulary")
        self.text_bits = self.pack(i for i, _ in self.text_tokens())
        self.eos_bits = self.pack(self.eos_token_ids)
        singles = {token for _, token in self.text_tokens() if len(token) == 1}
        self.is_complete = singles >= _UTF8_BYTES  # any text can be spelt
        self._lock = threading.RLock()
        self._built: dict[str, Any] = {}

    def pack(self, token_ids: Any) -> MaskRow:
        """A row with the bits of these tokens set."""
        bits = np.zeros(self.num_words * 32, dtype=np.uint8)
        bits[list(token_ids)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def unpack(self, row: MaskRow) -> list[int]:
        """The tokens whose bits are set, ascending."""
        found: list[int] = self._set_bits(row).tolist()
        return found

    def first_of(self, row: MaskRow, count: int) -> tuple[list[int], int]:
        """The first `count` tokens whose bits are set, and how many are set in all."""
        found = self._set_bits(row)
        return found[:count].tolist(), len(found)

    def _set_bits(self, row: MaskRow) -> NDArray[np.int64]:
        bits = np.unpackbits(np.ascontiguousarray(row).view(np.uint8), bitorder="little")[: self.size]
        return np.flatnonzero(bits)

    def spell(self, text: str) -> list[int]:
        """Tokens of `text` by the model's tokenizer; by longest match where it has none for it."""
        try:
            ids = [int(i) for i in self.encode(text)]
            if all(0 <= i < self.size for i in ids):
                return ids
        except Exception:  # whatever a tokenizer makes of text outside its alphabet
            pass
        return self._spell_greedily(text.encode("utf-8", errors="replace"))[0]

    def spell_bytes(self, text: bytes) -> list[int] | None:
        """Tokens without special ones that make up exactly these bytes; None where the vocabulary has none."""
        try:
            ids = self.spell(text.decode())
            if b"".join(self.tokens[i] for i in ids) == text and not self.special_ids.intersection(ids):
                return ids
        except UnicodeDecodeError:
            pass
        ids, size = self._spell_greedily(text)
        return ids if size == len(text) else None

    def _spell_greedily(self, text: bytes) -> tuple[list[int], int]:
        """Longest tokens first, and how many bytes they cover."""
        by_bytes = self.built("bytes", lambda: {t: i for i, t in self.text_tokens()})
        longest = self._max_length()
        ids = []
        at = 0
        while at < len(text):
            for size in range(min(longest, len(text) - at), 0, -1):
                if (token := by_bytes.get(text[at : at + size])) is not None:
                    ids.append(token)
                    at += size
                    break
            else:
                break  # nothing spells the rest
        return ids, at

    def around(self, text: bytes) -> TokensAround:
        """The tokens that can be legal where this text is forced; kept for the texts that come again and again."""
        around: TokensAround = self.built("around", lambda: functools.lru_cache(_MAX_AROUND)(self._around))(text)
        return around

    def _around(self, text: bytes) -> TokensAround:
        by_bytes, ordered, ids = self.built("ordered", self._ordered)
        within = [i for size in range(1, len(text) + 1) for i in by_bytes.get(text[:size], ())]
        first = bisect.bisect_left(ordered, text)
        last = bisect.bisect_right(ordered, text + b"\xff" * self._max_length(), first)
        beyond: list[tuple[int, int]] = []
        unspelt: list[tuple[int, int, bytes]] = []
        for token, token_id in zip(ordered[first:last], ids[first:last], strict=True):
            rest = token[len(text) :]
            starts = (by_bytes[rest[:size]][0] for size in range(len(rest), 0, -1) if rest[:size] in by_bytes)
            if rest and rest in by_bytes:
                beyond.append((token_id, next(starts)))
            elif rest:
                unspelt.append((token_id, next(starts, -1), rest))
        return TokensAround(
            within=self.pack(within),
            beyond=np.array([i for i, _ in beyond], dtype=np.int64),
            rests=np.array([i for _, i in beyond], dtype=np.int64),
            unspelt=[(i, rest) for i, start, rest in unspelt if start >= 0],
            starts=np.array([start for _, start, _ in unspelt if start >= 0], dtype=np.int64),
        )

    def spell_singly(self, text: bytes) -> list[int]:
        """One token per byte, as far as the vocabulary has them."""
        singles = self.built("singles", lambda: {t: i for i, t in self.text_tokens() if len(t) == 1})
        ids = [singles.get(text[i : i + 1]) for i in range(len(text))]
        return ids[: ids.index(None)] if None in ids else ids

    def warm(self) -> None:
        """Build what matchers look up, so that no step of the engine waits for it."""
        self.around(b"a")
        self.spell_singly(b"a")
        self._spell_greedily(b"a")

    def _ordered(self) -> tuple[dict[bytes, list[int]], list[bytes], list[int]]:
        pairs = sorted((token, i) for i, token in self.text_tokens())
        by_bytes: dict[bytes, list[int]] = {}
        for token, token_id in pairs:
            by_bytes.setdefault(token, []).append(token_id)
        return by_bytes, [token for token, _ in pairs], [i for _, i in pairs]

    def _max_length(self) -> int:
        longest: int = self.built("longest", lambda: max((len(t) for _, t in self.text_tokens()), default=0))
        return longest

    def text_tokens(self) -> Iterator[tuple[int, bytes]]:
        """The tokens that can be part of a constrained text, with their bytes."""
        return ((i, t) for i, t in enumerate(self.tokens) if t and i not in self.special_ids)

    def built(self, name: str, build: Callable[[], Any]) -> Any:
        """The object that a backend keeps per vocabulary under `name`, built by the first that asks."""
        if name in self._built:
            return self._built[name]
        with self._lock:
            if name not in self._built:
                self._built[name] = build()
            return self._built[name]
