"""Quoted texts of a grammar as single terminals, where that provably changes no member: masks inside them are fast.

A quoted text is an opening sign, a repetition and a closing sign. It becomes one terminal when (1) the repetition has
a prefix code and the closing sign begins none of its words, so that no quoted text goes on after its end, and (2) the
opening sign appears nowhere else in the grammar but inside quoted texts of the same kind, so that the longest match of
a lexer has nothing to choose from. Every other terminal is a single character.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from decodex.grammar.pattern import Chars, Choice, Concat, Pattern, Ranges, Repeat, Rule, Text, children, normalise

__all__ = ["Quoted", "pieces", "quoted_texts"]


@dataclass(frozen=True)
class Quoted:
    """An opening sign, a repetition and a closing sign."""

    opening: str
    middle: Repeat
    closing: str

    @property
    def pattern(self) -> Concat:
        """The whole quoted text."""
        return Concat((Text(self.opening), self.middle, Text(self.closing)))


def quoted_texts(patterns: Iterable[Pattern]) -> frozenset[Quoted]:
    """The quoted texts of a whole grammar that can be terminals."""
    by_sign: dict[str, set[Quoted]] = {}
    elsewhere: list[tuple[int, int]] = []
    for pattern in patterns:
        for piece in _terminals(pattern):
            if isinstance(piece, Quoted):
                by_sign.setdefault(piece.opening, set()).add(piece)
            else:
                elsewhere += piece
    ranges = normalise(elsewhere)
    found = set()
    for sign, kinds in by_sign.items():
        if len(kinds) == 1 and not _overlap(ranges, ((ord(sign), ord(sign)),)):
            found |= kinds
    return frozenset(found)


def pieces(pattern: Concat, known: frozenset[Quoted] | None) -> Iterator[Pattern | Quoted]:
    """The parts of a row with its quoted texts together (None: all that are closed, whether known or not)."""
    parts = list(pattern.parts)
    at = 0
    while at < len(parts):
        quoted = _quoted_at(parts, at)
        if quoted is None or (known is not None and quoted not in known):
            yield parts[at]
            at += 1
            continue
        before, after = parts[at], parts[at + 2]
        assert isinstance(before, Text)
        assert isinstance(after, Text)
        if before.text[:-1]:
            yield Text(before.text[:-1])
        yield quoted
        parts[at + 2] = Text(after.text[1:])
        at += 2 if after.text[1:] else 3


def _quoted_at(parts: list[Pattern], at: int) -> Quoted | None:
    run = parts[at : at + 3]
    if len(run) < 3:
        return None
    before, middle, after = run
    if not (isinstance(before, Text) and isinstance(middle, Repeat) and isinstance(after, Text)):
        return None
    closing = after.text[0]
    if not _is_prefix_code(middle.part) or _overlap(_first(middle.part), ((ord(closing), ord(closing)),)):
        return None
    return Quoted(before.text[-1], middle, closing)


def _terminals(pattern: Pattern) -> Iterator[Ranges | Quoted]:
    """The characters of everything, quoted texts as a whole."""
    if isinstance(pattern, Text):
        yield tuple((ord(c), ord(c)) for c in pattern.text)
    elif isinstance(pattern, Chars):
        yield pattern.ranges
    elif isinstance(pattern, Concat):
        for piece in pieces(pattern, None):
            if isinstance(piece, Quoted):
                yield piece
            else:
                yield from _terminals(piece)
    else:
        for part in children(pattern):
            yield from _terminals(part)


def _is_prefix_code(pattern: Pattern) -> bool:
    """Whether no word begins another one (sufficient, not necessary)."""
    if isinstance(pattern, Text | Chars):
        return True
    if isinstance(pattern, Rule):
        return False
    if isinstance(pattern, Repeat):
        return pattern.low == pattern.high and _is_prefix_code(pattern.part)
    if not pattern.parts or not all(_is_prefix_code(part) for part in pattern.parts):
        return False
    if isinstance(pattern, Concat):
        return True
    firsts = [_first(part) for part in pattern.parts]
    return not any(_overlap(a, b) for i, a in enumerate(firsts) for b in firsts[:i])


def _first(pattern: Pattern) -> Ranges:
    """The first characters of a prefix code's words, none of which is empty."""
    if isinstance(pattern, Text):
        return ((ord(pattern.text[0]), ord(pattern.text[0])),)
    if isinstance(pattern, Chars):
        return pattern.ranges
    if isinstance(pattern, Choice):
        return normalise([pair for part in pattern.parts for pair in _first(part)])
    return _first(children(pattern)[0])


def _overlap(one: Ranges, other: Ranges) -> bool:
    return any(a <= d and c <= b for a, b in one for c, d in other)
