"""What the matchers of the three libraries share: whether a token may be text, and a mask kept per position."""

from __future__ import annotations

from decodex.grammar.matcher import MaskRow

__all__ = ["has_bit"]


def has_bit(row: MaskRow, token_id: int) -> bool:
    """Whether a token's bit is set; ids outside the row have none."""
    return 0 <= token_id < row.size * 32 and bool(int(row[token_id >> 5]) >> (token_id & 31) & 1)
