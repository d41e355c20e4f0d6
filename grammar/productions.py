"""Rules of a grammar as plain productions over characters, for the independent check: no backend's form of them.

A grammar is a list of nonterminals, the first is the start; a nonterminal is a list of alternatives, an alternative a
list of symbols: the number of a nonterminal, or a list of [first, last] code points.
"""

from __future__ import annotations

from typing import Any

from decodex.grammar.ebnf import parse_ebnf
from decodex.grammar.iteration import iterated
from decodex.grammar.pattern import Chars, Choice, Concat, Pattern, Repeat, Rule, Text

__all__ = ["productions_of"]

Symbol = int | list[list[int]]


def productions_of(text: str) -> list[Any]:
    """Of a grammar in EBNF; ConstraintError where it is none."""
    rules = dict(iterated(parse_ebnf(text)).rules)  # or ambiguous ones would take the check too long
    names = ["root", *(name for name in rules if name != "root")]
    maker = _Maker({name: number for number, name in enumerate(names)})
    for number, name in enumerate(names):
        maker.grammar[number] = [maker.symbols(part) for part in _alternatives(rules[name])]
    return maker.grammar


def _alternatives(pattern: Pattern) -> tuple[Pattern, ...]:
    return pattern.parts if isinstance(pattern, Choice) else (pattern,)


class _Maker:
    def __init__(self, names: dict[str, int]) -> None:
        self._names = names
        self.grammar: list[list[list[Symbol]]] = [[] for _ in names]

    def symbols(self, pattern: Pattern) -> list[Symbol]:
        """A sequence that stands for a pattern; nonterminals of its own are added."""
        if isinstance(pattern, Text):
            return [[[ord(character)] * 2] for character in pattern.text]
        if isinstance(pattern, Chars):
            return [[list(pair) for pair in pattern.ranges]]
        if isinstance(pattern, Concat):
            return [symbol for part in pattern.parts for symbol in self.symbols(part)]
        if isinstance(pattern, Rule):
            return [self._names[pattern.name]]
        if isinstance(pattern, Choice):
            return [self._add([self.symbols(part) for part in pattern.parts])]
        return self._repeated(pattern)

    def _repeated(self, pattern: Repeat) -> list[Symbol]:
        part: list[Symbol] = [self._add([self.symbols(pattern.part)])]
        needed = part * pattern.low
        if pattern.high is None:
            more = self._add([[]])
            self.grammar[more].append([more, *part])
            return [*needed, more]
        rest: list[Symbol] = []
        for _ in range(pattern.high - pattern.low):
            rest = [self._add([[], [*part, *rest]])]
        return [*needed, *rest]

    def _add(self, alternatives: list[list[Symbol]]) -> int:
        self.grammar.append(alternatives)
        return len(self.grammar) - 1
