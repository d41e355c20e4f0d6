"""What every backend gives: compiled grammars (shared, immutable) and matchers (one request's position in one)."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from decodex.grammar.constraint import Constraint

__all__ = ["CompiledGrammar", "MaskRow", "Matcher", "address_of"]

MaskRow = NDArray[np.int32]  # [num_words]; bit t % 32 of word t // 32: token t is legal


class Matcher(Protocol):
    """One request's position in a compiled grammar. Not thread-safe; every failure of a backend is a MatcherError.

    Special tokens and tokens without bytes are never legal (but for markers that a structural tag names); nothing
    beyond the vocabulary is legal; an end (EOS) is a bit of the mask, never a token that is accepted.
    """

    def fill(self, row: MaskRow) -> bool:
        """Overwrite row whole with the mask of the next token; the bits of all ends are set iff `is_accepting`.

        False: every token of the vocabulary is legal and the row need not be applied.
        """

    def accept(self, token_id: int) -> bool:
        """Advance by one token. False: it is illegal and the state is what it was."""

    def rollback(self, num_tokens: int) -> None:
        """Take back the last accepted tokens, any number of them."""

    def fork(self) -> Matcher:
        """An independent matcher in the same state."""

    def forced_text(self) -> bytes:
        """Bytes that must come next, b"" where there is a choice (or the backend cannot tell)."""

    def forced_tokens(self) -> list[int]:
        """The backend's own tokens for `forced_text`, without those at its end that a longer text may change."""

    @property
    def is_accepting(self) -> bool:
        """The text so far satisfies the constraint: an end is legal here."""

    @property
    def is_terminated(self) -> bool:
        """Accepting, and nothing but an end can follow."""


class CompiledGrammar(Protocol):
    """A constraint compiled by one backend for one vocabulary: immutable, shared by requests and threads."""

    @property
    def constraint(self) -> Constraint:
        """What was compiled."""

    @property
    def backend(self) -> str:
        """Which library compiled it: "llguidance", "xgrammar" or "outlines"."""

    @property
    def num_bytes(self) -> int:
        """About how much memory it holds."""

    def matcher(self) -> Matcher:
        """A new matcher at the start."""


def address_of(row: MaskRow) -> int:
    """Where a contiguous row lies, for libraries that write through a pointer."""
    interface: dict[str, Any] = row.__array_interface__
    address: int = interface["data"][0]
    return address
