"""Patterns: what regular expressions, choices and grammar rules are made of, whatever they were written in.

Every backend is given a pattern printed in its own most basic syntax, so that `.`, `\\d`, escapes and anchors mean
the same in all of them. Characters are code points, never surrogates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from decodex.grammar.errors import ConstraintError
from decodex.grammar.limits import MAX_SIZE

__all__ = [
    "EMPTY",
    "Chars",
    "Choice",
    "Concat",
    "Pattern",
    "Ranges",
    "Repeat",
    "Rule",
    "Text",
    "complement",
    "concat",
    "is_nullable",
    "normalise",
    "size_of",
    "tidy",
    "to_rust",
    "walk",
    "without_empty",
]

Ranges = tuple[tuple[int, int], ...]  # code points, ascending, disjoint, ends included
_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_MAX_PARTS = 16  # in a row, for `tidy`


@dataclass(frozen=True)
class Text:
    """Exactly these characters."""

    text: str


@dataclass(frozen=True)
class Chars:
    """One character of a class."""

    ranges: Ranges


@dataclass(frozen=True)
class Concat:
    """One after the other; no parts: the empty text."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True)
class Choice:
    """Any one of them."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True)
class Repeat:
    """`low` to `high` times (None: any number)."""

    part: Pattern
    low: int
    high: int | None


@dataclass(frozen=True)
class Rule:
    """A rule of the grammar, by name."""

    name: str


Pattern = Text | Chars | Concat | Choice | Repeat | Rule
EMPTY = Concat(())


def normalise(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """Sorted and merged, without surrogates."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(_without_surrogates(ranges)):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


def complement(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """Every other code point."""
    gaps = []
    start = 0
    for first, last in normalise(ranges):
        if first > start:
            gaps.append((start, first - 1))
        start = last + 1
    if start <= _LAST:
        gaps.append((start, _LAST))
    return normalise(gaps)


def concat(parts: Sequence[Pattern]) -> Pattern:
    """The parts in a row, neighbouring texts joined."""
    joined: list[Pattern] = []
    for part in parts:
        inner = part.parts if isinstance(part, Concat) else (part,)
        for one in inner:
            if isinstance(one, Text) and joined and isinstance(joined[-1], Text):
                joined[-1] = Text(joined[-1].text + one.text)
            else:
                joined.append(one)
    return joined[0] if len(joined) == 1 else Concat(tuple(joined))


def children(pattern: Pattern) -> tuple[Pattern, ...]:
    """The patterns directly inside."""
    if isinstance(pattern, Concat | Choice):
        return pattern.parts
    return (pattern.part,) if isinstance(pattern, Repeat) else ()


def walk(pattern: Pattern) -> Iterator[Pattern]:
    """The pattern and everything inside it."""
    stack = [pattern]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(children(top))


def size_of(pattern: Pattern) -> int:
    """Characters and classes with repetitions written out; ConstraintError as soon as it is above the bound."""
    if isinstance(pattern, Text):
        size = len(pattern.text)
    elif isinstance(pattern, Repeat):
        times = max(1, pattern.low if pattern.high is None else pattern.high)
        size = size_of(pattern.part) * times
    else:
        size = 1 + sum(size_of(part) for part in children(pattern))
    if size > MAX_SIZE:
        raise ConstraintError(
            f"the pattern is too large: with its repetitions written out it has more than {MAX_SIZE:,} characters"
        )
    return size


def is_nullable(pattern: Pattern) -> bool:
    """Whether the empty text is a member (rules count as not)."""
    if isinstance(pattern, Repeat):
        return pattern.low == 0 or is_nullable(pattern.part)
    if isinstance(pattern, Choice):
        return any(is_nullable(part) for part in pattern.parts)
    return isinstance(pattern, Concat) and all(is_nullable(part) for part in pattern.parts)


def without_empty(pattern: Pattern) -> Pattern | None:
    """The same members but for the empty text; None where there are no others."""
    if not is_nullable(pattern):
        return pattern
    if isinstance(pattern, Repeat):
        part = without_empty(pattern.part)
        return None if part is None or pattern.high == 0 else Repeat(part, 1, pattern.high)
    assert isinstance(pattern, Concat | Choice), pattern
    kept: list[Pattern] = []
    for index, part in enumerate(pattern.parts):
        following = pattern.parts[index + 1 :] if isinstance(pattern, Concat) else ()
        if (first := without_empty(part)) is not None:  # in a row: the first that is not empty, and what follows it
            kept.append(concat([first, *following]))
    return Choice(tuple(kept)) if kept else None


def tidy(pattern: Pattern) -> Pattern:
    """The same members, without repetitions of what may be empty: parsers try those in too many ways."""
    if isinstance(pattern, Concat):
        return concat([tidy(part) for part in pattern.parts])
    if isinstance(pattern, Choice):
        return Choice(tuple(tidy(part) for part in pattern.parts))
    if not isinstance(pattern, Repeat):
        return pattern
    part = tidy(pattern.part)
    if not is_nullable(part) or any(len(children(inner)) > _MAX_PARTS for inner in walk(part)):
        return replace(pattern, part=part)
    kept = without_empty(part)
    return EMPTY if kept is None else Repeat(kept, 0, pattern.high)


def to_rust(pattern: Pattern) -> str:
    """In the syntax of Rust's regex crate, which llguidance and outlines-core read."""
    if isinstance(pattern, Text):
        return "".join(_rust_char(c) for c in pattern.text)
    if isinstance(pattern, Chars):
        return f"[{''.join(_rust_range(*pair) for pair in pattern.ranges)}]"
    if isinstance(pattern, Concat):
        return "".join(to_rust(part) for part in pattern.parts) if pattern.parts else "(?:)"
    if isinstance(pattern, Choice):
        return f"(?:{'|'.join(to_rust(part) for part in pattern.parts)})"
    assert isinstance(pattern, Repeat), f"{pattern} can't stand in a regular expression"
    times = f"{{{pattern.low},{'' if pattern.high is None else pattern.high}}}"
    return f"(?:{to_rust(pattern.part)}){times}"


def _rust_char(character: str) -> str:
    if character.isascii() and character.isalnum():
        return character
    return f"\\x{{{ord(character):x}}}"


def _rust_range(first: int, last: int) -> str:
    return f"\\x{{{first:x}}}" if first == last else f"\\x{{{first:x}}}-\\x{{{last:x}}}"


def _without_surrogates(ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for first, last in ranges:
        if first < _SURROGATES[0]:
            yield first, min(last, _SURROGATES[0] - 1)
        if last > _SURROGATES[1]:
            yield max(first, _SURROGATES[1] + 1), last
