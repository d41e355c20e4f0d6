"""What each token adds to the text, as bytes: a table that is built once for a tokenizer and never changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

__all__ = ["ByteDecoder", "TokenBytes", "without_leading"]

ByteColumn = np.ndarray[Any, np.dtype[np.uint8]]


class TokenBytes:
    """The bytes of the V tokens of a vocabulary; `hidden_ids` are special tokens that a text can leave out."""

    def __init__(self, tokens: Sequence[bytes], hidden_ids: frozenset[int]) -> None:
        self.tokens = list(tokens)  # [V]
        self.hidden_ids = hidden_ids

    def __len__(self) -> int:
        return len(self.tokens)

    def shown(self, token_id: int, skip_special_tokens: bool) -> bytes:
        """The bytes of a token in a text with or without special tokens."""
        return b"" if skip_special_tokens and token_id in self.hidden_ids else self.tokens[token_id]

    @cached_property
    def order(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Token ids by falling length, [V] (the order of `columns`)."""
        lengths = np.array([len(token) for token in self.tokens], dtype=np.int64)
        return np.argsort(-lengths, kind="stable")

    @cached_property
    def columns(self) -> list[ByteColumn]:
        """Byte j of each token that has more than j bytes, in `order`."""
        ordered = [self.tokens[token] for token in self.order.tolist()]
        columns: list[ByteColumn] = []
        while ordered and len(ordered[0]) > len(columns):
            at = len(columns)
            while len(ordered[-1]) <= at:
                ordered.pop()
            columns.append(np.array([token[at] for token in ordered], dtype=np.uint8))
        return columns


class ByteDecoder:
    """What a decoder of the `tokenizers` library makes of one token, as bytes.

    `num_stripped` spaces are taken off the beginning of a text. `is_exact`: a text is the bytes of its tokens joined
    and decoded as UTF-8, whatever stands first. Only in a run of byte tokens that is no valid text does the library
    differ: it replaces the run's whole characters too.
    """

    def __init__(self, stages: Sequence[tuple[str, Any]], num_stripped: int, is_exact: bool) -> None:
        self._stages = list(stages)
        self.num_stripped = num_stripped
        self.is_exact = is_exact

    @classmethod
    def of(cls, decoder_state: bytes | str | None) -> ByteDecoder | None:
        """From the JSON of a tokenizer's decoder; None for one that doesn't work on bytes. Known are byte-level
        vocabularies (GPT-2's alphabet) and SentencePiece's, with byte fallback or without."""
        decoder = json.loads(decoder_state) if decoder_state else None
        if not isinstance(decoder, dict):
            return None
        chain = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
        stages: list[tuple[str, Any]] = []
        is_fused, is_exact, num_stripped = False, True, 0
        for part in chain:
            kind = part["type"]
            if kind == "ByteLevel":
                stages.append(("alphabet", _ALPHABET))
            elif kind == "Replace" and "String" in part["pattern"]:
                stages.append(("replace", (part["pattern"]["String"], part["content"])))
                is_exact = is_exact and not is_fused
            elif kind == "Metaspace":
                stages.append(("replace", (part["replacement"], " ")))
                is_exact = False
            elif kind == "ByteFallback":
                stages.append(("fallback", None))
            elif kind == "Fuse":
                is_fused = True
            elif kind == "Strip" and is_fused:
                num_stripped += part["start"]
                is_exact = is_exact and part["content"] == " " and part["stop"] == 0
            else:
                return None
        is_exact = is_exact and stages != [] and (is_fused or stages[-1][0] == "alphabet")
        return cls(stages, num_stripped, is_exact) if stages else None

    def bytes_of(self, spelling: str) -> bytes:
        """Of a token in the vocabulary's own spelling."""
        for kind, argument in self._stages:
            if kind == "replace":
                spelling = spelling.replace(*argument)
            elif kind == "fallback":
                if len(spelling) == 6 and spelling.startswith("<0x") and spelling.endswith(">"):
                    try:
                        return bytes([int(spelling[3:5], 16)])
                    except ValueError:
                        continue
            elif all(character in argument for character in spelling):
                return bytes(argument[character] for character in spelling)
        return spelling.encode("utf-8", errors="replace")


def without_leading(text: bytes, num_spaces: int) -> bytes:
    """Without up to so many spaces that it begins with."""
    while num_spaces > 0 and text.startswith(b" "):
        text, num_spaces = text[1:], num_spaces - 1
    return text


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's reversible spelling of bytes: printable Latin-1 as itself, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(b): b for b in printable}, **{chr(256 + i): b for i, b in enumerate(others)}}


_ALPHABET = _byte_alphabet()
