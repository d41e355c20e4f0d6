"""A grammar without recursion is a regular expression: its rules written out where they are used."""

from __future__ import annotations

from decodex.grammar.ebnf import Rules
from decodex.grammar.pattern import Choice, Concat, Pattern, Repeat, Rule, Text, children, concat

__all__ = ["inlined"]

_MAX_DEPTH = 40  # rules within rules


def inlined(rules: Rules, limit: int) -> Pattern | None:
    """One pattern for the whole grammar; None where it is recursive, or has more than `limit` parts."""
    table = dict(rules.rules)
    sizes: dict[str, int] = {}

    def size_of_rule(name: str, depth: int) -> int:
        """Parts of the rule written out; above the limit where it is recursive or nested too deeply."""
        if name not in sizes:
            sizes[name] = limit + 1  # what a rule inside itself sees
            if depth < _MAX_DEPTH:
                sizes[name] = min(size_of(table[name], depth), limit + 1)
        return sizes[name]

    def size_of(pattern: Pattern, depth: int) -> int:
        if isinstance(pattern, Rule):
            return size_of_rule(pattern.name, depth + 1)
        own = max(1, len(pattern.text)) if isinstance(pattern, Text) else 1
        return own + sum(size_of(part, depth) for part in children(pattern))

    def write(pattern: Pattern) -> Pattern:
        if isinstance(pattern, Rule):
            return write(table[pattern.name])
        if isinstance(pattern, Repeat):
            return Repeat(write(pattern.part), pattern.low, pattern.high)
        if isinstance(pattern, Choice):
            return Choice(tuple(write(part) for part in pattern.parts))
        return concat([write(part) for part in pattern.parts]) if isinstance(pattern, Concat) else pattern

    return write(Rule("root")) if size_of_rule("root", 0) <= limit else None
