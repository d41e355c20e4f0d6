"""What each token adds to the text, as bytes: a table that is built once for a tokenizer and never changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

__all__ = ["TokenBytes", "bytes_of_tokens"]

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


def bytes_of_tokens(spellings: Sequence[str | None], decoder_state: bytes | str | None) -> list[bytes] | None:
    """Bytes of each token from its spelling [V] and the JSON of the tokenizer's decoder; None if that can't be known.

    Known are byte-level vocabularies (GPT-2's alphabet) and SentencePiece's with byte fallback, as the `tokenizers`
    library decodes them. A space that such a decoder takes off the beginning of a text is kept here.
    """
    stages = _stages(decoder_state)
    if stages is None:
        return None
    return [b"" if spelling is None else _apply(stages, spelling) for spelling in spellings]


def _stages(decoder_state: bytes | str | None) -> list[tuple[str, Any]] | None:
    decoder = json.loads(decoder_state) if decoder_state else None
    if not isinstance(decoder, dict):
        return None
    chain = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    stages: list[tuple[str, Any]] = []
    is_fused = False
    for part in chain:
        kind = part["type"]
        if kind == "ByteLevel":
            stages.append(("alphabet", _ALPHABET))
        elif kind == "Replace" and "String" in part["pattern"]:
            stages.append(("replace", (part["pattern"]["String"], part["content"])))
        elif kind == "Metaspace":
            stages.append(("replace", (part["replacement"], " ")))
        elif kind == "ByteFallback":
            stages.append(("fallback", None))
        elif kind == "Fuse":
            is_fused = True
        elif not (kind == "Strip" and is_fused):
            return None
    return stages if any(name in ("alphabet", "fallback") or name == "replace" for name, _ in stages) else None


def _apply(stages: list[tuple[str, Any]], spelling: str) -> bytes:
    for kind, argument in stages:
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


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's reversible spelling of bytes: printable Latin-1 as itself, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{chr(b): b for b in printable}, **{chr(256 + i): b for i, b in enumerate(others)}}


_ALPHABET = _byte_alphabet()
