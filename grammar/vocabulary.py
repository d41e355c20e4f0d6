"""The model's vocabulary as the grammar libraries see it: bytes per token, special tokens, ends."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decodex.grammar.matcher import MaskRow

__all__ = ["GrammarVocabulary"]

_UTF8_BYTES = {bytes([byte]) for byte in range(0xF5) if byte not in (0xC0, 0xC1)}


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

    def compatible(self, text: bytes, num_legal_bytes: Callable[[bytes], int]) -> list[int]:
        """Tokens of text that begin `text` or are it, and those that go on after it and are legal to their end.

        num_legal_bytes: how many of the bytes that it is given are legal here.
        """
        by_bytes, ordered, ids = self.built("ordered", self._ordered)
        found = []
        for size in range(1, min(len(text), self._max_length()) + 1):
            if (same := by_bytes.get(text[:size])) is not None:
                found += same
        at = bisect.bisect_right(ordered, text)
        while at < len(ordered) and ordered[at].startswith(text):
            token = ordered[at]
            size = num_legal_bytes(token)
            if size >= len(token):
                found.append(ids[at])
                at += 1
            else:  # nothing that begins like this is legal
                at = bisect.bisect_right(ordered, token[: size + 1] + b"\xff" * self._max_length(), at)
        return found

    def spell_singly(self, text: bytes) -> list[int]:
        """One token per byte, as far as the vocabulary has them."""
        singles = self.built("singles", lambda: {t: i for i, t in self.text_tokens() if len(t) == 1})
        ids = [singles.get(text[i : i + 1]) for i in range(len(text))]
        return ids[: ids.index(None)] if None in ids else ids

    def warm(self) -> None:
        """Build what matchers look up, so that no step of the engine waits for it."""
        self.compatible(b"a", len)
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
