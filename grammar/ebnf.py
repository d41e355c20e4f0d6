"""EBNF as in GBNF: `name ::= "text" [a-z] (group)* other | ...`, parsed to one pattern per rule, starting at `root`.

`.` is any character, newlines too; `[^...]` is any other character. A rule goes on over line ends until the next
`name ::=`. Rules that can never come to an end are taken out; where `root` is one of them the grammar is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from decodex.grammar.errors import ConstraintError
from decodex.grammar.limits import MAX_NESTING, MAX_REPETITION, MAX_RULES, check_size, check_text
from decodex.grammar.pattern import (
    EMPTY,
    Chars,
    Choice,
    Concat,
    Pattern,
    Repeat,
    Rule,
    Text,
    children,
    complement,
    concat,
    normalise,
    size_of,
    tidy,
    walk,
)

__all__ = ["Rules", "is_ebnf", "parse_ebnf"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_SPACE = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)+")
_TIMES = re.compile(r"\{\s*(\d{1,9})\s*(,\s*(\d{1,9})?\s*)?\}")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "v": "\v", "f": "\f", "b": "\b", "0": "\0", "a": "\a"}
_WIDTHS = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True)
class Rules:
    """A grammar: name -> pattern, in order; the start is `root`. Every rule can be reached and comes to an end."""

    rules: tuple[tuple[str, Pattern], ...]


def is_ebnf(text: str) -> bool:
    """Whether a text defines a rule with ::= at the beginning of a line."""
    return re.search(r"(?m)^[ \t]*[A-Za-z_][A-Za-z0-9_.-]*\s*::=", text) is not None


def parse_ebnf(text: str) -> Rules:
    """The rules of a grammar; ConstraintError says what is wrong in which line."""
    check_text(text)
    rules = _Parser(text).parse()
    for name, pattern in rules.items():
        size_of(pattern)
        for part in walk(pattern):
            if isinstance(part, Rule) and part.name not in rules:
                raise ConstraintError(f"rule {name!r} uses {part.name!r}, which is not defined")
    if "root" not in rules:
        raise ConstraintError("the grammar has no rule named 'root'")
    rules = _productive(rules)
    if "root" not in rules:
        raise ConstraintError("no text is a member of the grammar: its root never comes to an end")
    return Rules(tuple((name, tidy(rules[name])) for name in _reachable(rules)))


class _Parser:
    """Recursive descent over the whole text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def parse(self) -> dict[str, Pattern]:
        rules: dict[str, Pattern] = {}
        self._space()
        while self._at < len(self._text):
            name = self._head()
            if name is None:
                raise self._error("expected a rule: name ::= ...")
            if name in rules:
                raise self._error(f"rule {name!r} is defined twice")
            rules[name] = self._alternatives()
            check_size("rules", len(rules), MAX_RULES)
        return rules

    def _error(self, reason: str) -> ConstraintError:
        line = self._text.count("\n", 0, self._at) + 1
        return ConstraintError(f"grammar, line {line}: {reason}")

    def _space(self) -> None:
        if match := _SPACE.match(self._text, self._at):
            self._at = match.end()

    def _take(self, sign: str) -> bool:
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        return True

    def _head(self) -> str | None:
        """The name in front of ::=, read; None (and nothing read) where no rule begins."""
        match = _NAME.match(self._text, self._at)
        if match is None:
            return None
        space = _SPACE.match(self._text, match.end())
        end = space.end() if space else match.end()
        if not self._text.startswith("::=", end):
            return None
        self._at = end + 3
        self._space()
        return match.group()

    def _alternatives(self) -> Pattern:
        parts = [self._sequence()]
        while self._take("|"):
            self._space()
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self) -> Pattern:
        parts: list[Pattern] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            start = self._at
            if self._head() is not None:
                self._at = start
                break
            parts.append(self._repeated(self._element()))
        return concat(parts)

    def _repeated(self, part: Pattern) -> Pattern:
        self._space()
        while self._at < len(self._text):
            times: tuple[int, int | None]
            if self._take("*"):
                times = (0, None)
            elif self._take("+"):
                times = (1, None)
            elif self._take("?"):
                times = (0, 1)
            elif match := _TIMES.match(self._text, self._at):
                self._at = match.end()
                low = int(match[1])
                times = (low, low if match[2] is None else int(match[3]) if match[3] else None)
            else:
                break
            if max(times[0], times[1] or 0) > MAX_REPETITION:
                raise self._error(f"at most {MAX_REPETITION:,} repetitions are allowed")
            if times[1] is not None and times[1] < times[0]:
                raise self._error(f"bad repetition {{{times[0]},{times[1]}}}")
            part = EMPTY if times[1] == 0 else Repeat(part, *times)
            self._space()
        return part

    def _element(self) -> Pattern:
        if self._take('"'):
            return self._text_literal()
        if self._take("["):
            return self._class()
        if self._take("."):
            return Chars(complement(()))
        if self._text.startswith("(=", self._at):
            raise self._error("look-ahead is not supported")
        if self._take("("):
            self._depth += 1
            if self._depth > MAX_NESTING:
                raise self._error(f"brackets are nested more than {MAX_NESTING} deep")
            self._space()
            pattern = self._alternatives()
            if not self._take(")"):
                raise self._error("missing )")
            self._depth -= 1
            return pattern
        match = _NAME.match(self._text, self._at)
        if match is None:
            raise self._error(f"unexpected {self._text[self._at]!r}")
        self._at = match.end()
        return Rule(match.group())

    def _text_literal(self) -> Pattern:
        characters = []
        while not self._take('"'):
            characters.append(self._character())
        return Text("".join(characters)) if characters else EMPTY

    def _class(self) -> Pattern:
        is_negated = self._take("^")
        ranges = []
        while not self._take("]"):
            first = last = self._character()
            if self._text.startswith("-", self._at) and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                last = self._character()
            if last < first:
                raise self._error(f"bad range {first!r}-{last!r}")
            ranges.append((ord(first), ord(last)))
        found = complement(ranges) if is_negated else normalise(ranges)
        if not found:
            raise self._error("an empty class")
        return Chars(found)

    def _character(self) -> str:
        """One character of a text or class, escapes resolved."""
        if self._at >= len(self._text):
            raise self._error("it ends inside a text or class")
        character = self._text[self._at]
        if character == "\n":
            raise self._error("a text or class goes on over a line end (write \\n)")
        self._at += 1
        if character != "\\":
            return character
        sign = self._text[self._at : self._at + 1]
        self._at += 1
        if sign in _WIDTHS:
            digits = self._text[self._at : self._at + _WIDTHS[sign]]
            if not re.fullmatch(r"[0-9a-fA-F]+", digits) or len(digits) != _WIDTHS[sign]:
                raise self._error(f"bad escape \\{sign}{digits}")
            self._at += len(digits)
            code = int(digits, 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                raise self._error(f"U+{code:X} is no character")
            return chr(code)
        if sign in _ESCAPES:
            return _ESCAPES[sign]
        if sign.isascii() and sign and not sign.isalnum():
            return sign
        raise self._error(f"unknown escape \\{sign}")


def _productive(rules: dict[str, Pattern]) -> dict[str, Pattern]:
    """Without the rules and alternatives that have no finite member."""
    good: set[str] = set()
    while True:
        found = {name for name, pattern in rules.items() if name in good or _ends(pattern, good)}
        if found == good:
            break
        good = found
    return {name: _kept(rules[name], good) for name in rules if name in good}


def _ends(pattern: Pattern, good: set[str]) -> bool:
    if isinstance(pattern, Rule):
        return pattern.name in good
    if isinstance(pattern, Choice):
        return any(_ends(part, good) for part in pattern.parts)
    if isinstance(pattern, Repeat):
        return pattern.low == 0 or _ends(pattern.part, good)
    return all(_ends(part, good) for part in children(pattern))


def _kept(pattern: Pattern, good: set[str]) -> Pattern:
    if isinstance(pattern, Choice):
        parts = tuple(_kept(part, good) for part in pattern.parts if _ends(part, good))
        return parts[0] if len(parts) == 1 else Choice(parts)
    if isinstance(pattern, Repeat):
        return Repeat(_kept(pattern.part, good), pattern.low, pattern.high) if _ends(pattern.part, good) else EMPTY
    return concat([_kept(part, good) for part in pattern.parts]) if isinstance(pattern, Concat) else pattern


def _reachable(rules: dict[str, Pattern]) -> Iterator[str]:
    seen = {"root"}
    queue = ["root"]
    for name in queue:
        yield name
        for part in walk(rules[name]):
            if isinstance(part, Rule) and part.name not in seen:
                seen.add(part.name)
                queue.append(part.name)
