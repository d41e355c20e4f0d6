"""Our own bounds on what a constraint may ask for, checked before any backend sees it.

The libraries compile some short texts for minutes or into gigabytes; what a bound here does not catch runs in a
process that can be killed (see `child`).
"""

from __future__ import annotations

from decodex.grammar.errors import ConstraintError

__all__ = [
    "MAX_CHOICES",
    "MAX_CHOICE_LENGTH",
    "MAX_NESTING",
    "MAX_REPETITION",
    "MAX_RULES",
    "MAX_SIZE",
    "MAX_TEXT_BYTES",
    "check_size",
    "check_text",
]

MAX_TEXT_BYTES = 1 << 20  # of a constraint's text
MAX_NESTING = 100  # brackets within brackets of a regex or a grammar
MAX_REPETITION = 10_000  # {m,n} of a grammar (regular expressions: 1,000, as in RE2)
MAX_SIZE = 100_000  # characters and classes of a pattern with its repetitions written out
MAX_CHOICES = 20_000
MAX_CHOICE_LENGTH = 8_192
MAX_RULES = 1_000


def check_text(text: str) -> None:
    """Refuse a text that is too long or is no text (lone surrogates)."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ConstraintError("the constraint holds a lone surrogate, which no text can contain") from None
    if size > MAX_TEXT_BYTES:
        raise ConstraintError(f"the constraint has {size:,} bytes, at most {MAX_TEXT_BYTES:,} are allowed")


def check_size(what: str, size: int, limit: int) -> None:
    """Refuse what is larger than its limit."""
    if size > limit:
        raise ConstraintError(f"{size:,} {what}, at most {limit:,} are allowed")
