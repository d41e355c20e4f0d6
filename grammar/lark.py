"""Lark grammars as llguidance reads them: how they are recognised, checked, and printed from our own rules."""

from __future__ import annotations

import re

from decodex.grammar.ebnf import Rules
from decodex.grammar.errors import ConstraintError
from decodex.grammar.lexemes import Quoted, pieces, quoted_texts
from decodex.grammar.limits import MAX_NESTING, MAX_REPETITION, check_text
from decodex.grammar.pattern import Chars, Choice, Concat, Pattern, Repeat, Rule, Text, complement, to_rust

__all__ = ["LarkPrinter", "check_lark", "is_lark", "print_ebnf", "print_lark"]

_START = re.compile(r"(?m)^\s*(%llguidance\b|\??start\s*(\[[^\]\n]*\])?\s*:)")
# what may hold any sign: a text, a regex, a comment
_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*')
_LAST = 0x10FFFF
_TIMES = re.compile(r"\{(\d+)?,?(\d+)?\}|~\s*(\d+)(?:\s*\.\.\s*(\d+))?")


def is_lark(text: str) -> bool:
    """Whether a text defines a rule named start."""
    return _START.search(text) is not None


def check_lark(text: str) -> str:
    """The text itself, without what we can't answer for: special tokens, embedded schemas, limits of its own."""
    check_text(text)
    text = re.sub(r"(?m)^([ \t]*)%llguidance\s*\{\s*\}", r"\1", text)
    bare = _QUOTED.sub(lambda match: " " * len(match.group()), text)
    for found, reason in (
        (re.search(r"<[|\w\[!*][^<>\n]*>", bare), "special tokens are not legal inside a constrained output"),
        (re.search(r"%json\b", bare), "an embedded JSON schema is not supported (use the kind json)"),
        (re.search(r"%(llguidance|import)\b", bare), "options and imports of the library are not supported"),
        (re.search(r"@\w", bare), "references to other grammars are not supported"),
        (re.search(r"\b(max_tokens|stop_capture|temperature)\s*=", bare), "this attribute is not supported"),
    ):
        if found:
            line = bare.count("\n", 0, found.start()) + 1
            raise ConstraintError(f"grammar, line {line}: {reason}")
    for match in _TIMES.finditer(bare):
        if any(int(number) > MAX_REPETITION for number in match.groups() if number and len(number) < 12):
            line = bare.count("\n", 0, match.start()) + 1
            raise ConstraintError(f"grammar, line {line}: at most {MAX_REPETITION:,} repetitions are allowed")
    if max(bare.count("("), bare.count("[")) > 20 * MAX_NESTING:
        raise ConstraintError("the grammar has too many brackets")
    return text


def print_lark(rules: Rules) -> str:
    """Our rules as a Lark grammar with one terminal per character class.

    The library's lexer takes the longest match, which would make a longer terminal swallow what follows it; one
    character is always the longest match of itself (quoted texts are longer where that is safe, see `lexemes`).
    """
    printer = LarkPrinter([name for name, _ in rules.rules], quoted=quoted_texts(p for _, p in rules.rules))
    lines = [f"{printer.names[name]}: {printer.print(pattern)}" for name, pattern in rules.rules]
    terminals = [f"{name}: /{regex}/" for regex, name in printer.terminals.items()]
    return "\n".join(["start: r0", *lines, *terminals, ""])


class LarkPrinter:
    """Prints patterns; collects their terminals (regex -> name). prefix: of the names of rules."""

    def __init__(self, names: list[str], prefix: str = "r", quoted: frozenset[Quoted] = frozenset()) -> None:
        self.names = {name: f"{prefix}{'' if prefix == 'r' else '_'}{index}" for index, name in enumerate(names)}
        self._prefix = prefix.upper()
        self._quoted = quoted
        self.terminals: dict[str, str] = {}

    def print(self, pattern: Pattern) -> str:
        """The right-hand side of a rule."""
        if isinstance(pattern, Rule):
            return self.names[pattern.name]
        if isinstance(pattern, Text):
            return " ".join(self._terminal(Text(c)) for c in pattern.text) or '""'
        if isinstance(pattern, Chars):
            return self._terminal(pattern)
        if isinstance(pattern, Repeat):
            times = f"{{{pattern.low},{'' if pattern.high is None else pattern.high}}}"
            return f"({self.print(pattern.part)}){times}"
        if isinstance(pattern, Choice):
            return f"({' | '.join(self.print(part) for part in pattern.parts)})"
        return " ".join(self._piece(piece) for piece in pieces(pattern, self._quoted)) or '""'

    def _piece(self, piece: Pattern | Quoted) -> str:
        return self._terminal(piece.pattern) if isinstance(piece, Quoted) else self.print(piece)

    def _terminal(self, pattern: Pattern) -> str:
        regex = to_rust(pattern)
        return self.terminals.setdefault(regex, f"{self._prefix}_T{len(self.terminals)}")


def print_ebnf(rules: Rules) -> str:
    """Our rules in xgrammar's EBNF, in the most basic syntax."""
    names = {name: f"r{index}" for index, (name, _) in enumerate(rules.rules)}
    names["root"] = "root"
    return "\n".join(f"{names[name]} ::= {_ebnf(pattern, names)}" for name, pattern in rules.rules) + "\n"


def _ebnf(pattern: Pattern, names: dict[str, str]) -> str:
    if isinstance(pattern, Rule):
        return names[pattern.name]
    if isinstance(pattern, Text):
        return '"' + "".join(_escaped(ord(c)) for c in pattern.text) + '"'
    if isinstance(pattern, Chars):
        is_negated = pattern.ranges[-1][1] == _LAST  # the library is far slower with long classes
        ranges = complement(pattern.ranges) if is_negated else pattern.ranges
        if is_negated and not ranges:
            ranges = ((0, _LAST),)
            is_negated = False
        body = "".join(f"{_escaped(first)}-{_escaped(last)}" for first, last in ranges)
        return f"[{'^' if is_negated else ''}{body}]"
    if isinstance(pattern, Repeat):
        times = f"{{{pattern.low},{'' if pattern.high is None else pattern.high}}}"
        return f"({_ebnf(pattern.part, names)}){times}"
    assert isinstance(pattern, Concat | Choice)
    parts = [_ebnf(part, names) for part in pattern.parts]
    if isinstance(pattern, Choice):
        return f"({' | '.join(parts)})"
    return " ".join(parts) or '""'


def _escaped(code: int) -> str:
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
