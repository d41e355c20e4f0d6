"""The small tree that patterns are parsed to, and sets of code points."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MAX_CODE", "Alt", "Cat", "Chars", "End", "Look", "Part", "Rep", "Start", "inverted", "merged"]

MAX_CODE = 0x10FFFF


@dataclass(frozen=True)
class Chars:
    """One code point of `ranges` (sorted, apart) or of a Unicode property class; `negated`: of none of them."""

    ranges: tuple[tuple[int, int], ...]
    properties: tuple[str, ...] = ()
    negated: bool = False


@dataclass(frozen=True)
class Start:
    """The start of the text."""


@dataclass(frozen=True)
class End:
    """The end of the text."""


@dataclass(frozen=True)
class Cat:
    """Parts one after the other; none: the empty text."""

    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Alt:
    """One of the options."""

    options: tuple[Part, ...]


@dataclass(frozen=True)
class Rep:
    """`body` from `low` to `high` times; `high` None: without end."""

    body: Part
    low: int
    high: int | None


@dataclass(frozen=True)
class Look:
    """Look-ahead."""

    body: Part
    negated: bool


Part = Chars | Start | End | Cat | Alt | Rep | Look


def merged(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same code points as sorted ranges that do not touch."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def inverted(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Every code point that is in none of the ranges."""
    found, next_low = [], 0
    for low, high in merged(ranges):
        if low > next_low:
            found.append((next_low, low - 1))
        next_low = high + 1
    if next_low <= MAX_CODE:
        found.append((next_low, MAX_CODE))
    return found
