"""Rules that begin or end with themselves, as repetitions: the same members, without the many ways to derive them.

A rule A of alternatives A X A, A Y, Z A and B (which may have A inside, not at their ends) has exactly the members
P (X P)* with P = Z* B Y*: every such text is derived, and what A's alternatives make of such texts is one again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from decodex.grammar.ebnf import Rules
from decodex.grammar.pattern import EMPTY, Choice, Concat, Pattern, Repeat, Rule, concat, tidy

__all__ = ["iterated"]


def iterated(rules: Rules) -> Rules:
    """The grammar with such rules rewritten; a part that is needed twice becomes a rule of its own."""
    found: dict[str, Pattern] = {}
    names = {name for name, _ in rules.rules}
    for name, pattern in rules.rules:
        unit, links = _split(name, pattern)
        if unit is None:
            found[name] = pattern
            continue
        if isinstance(unit, Concat | Choice) and links not in (None, EMPTY):
            own = f"{name}'"
            while own in names:
                own += "'"
            names.add(own)
            found[name], found[own] = _joined(Rule(own), links), tidy(unit)
        else:
            found[name] = _joined(unit, links)
    return Rules(tuple(found.items()))


def _joined(unit: Pattern, links: Pattern | None) -> Pattern:
    if links is None:
        return tidy(unit)
    if links == EMPTY:
        return tidy(Repeat(unit, 1, None))
    return tidy(concat([unit, Repeat(concat([links, unit]), 0, None)]))


def _split(name: str, pattern: Pattern) -> tuple[Pattern | None, Pattern | None]:
    """P and X of a rule (no X: None); no P where the rule is not of this kind."""
    itself = Rule(name)
    links: list[Pattern] = []
    after: list[Pattern] = []
    before: list[Pattern] = []
    others: list[Pattern] = []
    longer: list[Pattern] = []  # A A A, ...: nothing new beside A A
    for part in _alternatives(pattern):
        row = part.parts if isinstance(part, Concat) else (part,)
        begins, ends = row[:1] == (itself,), row[-1:] == (itself,)
        if row == (itself,):
            continue
        if all(one == itself for one in row) and len(row) > 2:
            longer.append(part)
        elif begins and ends:
            links.append(concat(row[1:-1]))
        elif begins:
            after.append(concat(row[1:]))
        elif ends:
            before.append(concat(row[:-1]))
        else:
            others.append(part)
    inner = [one for one in (*links, *after, *before) if one != EMPTY]
    is_plain = not any(itself in _ends(one) for one in inner) and (not longer or EMPTY in links)
    if not others or not (links or after or before) or not is_plain:
        return None, None
    unit = concat([*_any_number(before), _choice(others), *_any_number(after)])
    return unit, _choice(links) if links else None


def _ends(pattern: Pattern) -> tuple[Pattern, ...]:
    return (pattern.parts[0], pattern.parts[-1]) if isinstance(pattern, Concat) and pattern.parts else (pattern,)


def _any_number(parts: Sequence[Pattern]) -> list[Pattern]:
    return [Repeat(_choice(parts), 0, None)] if parts else []


def _choice(parts: Sequence[Pattern]) -> Pattern:
    return parts[0] if len(parts) == 1 else Choice(tuple(parts))


def _alternatives(pattern: Pattern) -> Iterator[Pattern]:
    if isinstance(pattern, Choice):
        for part in pattern.parts:
            yield from _alternatives(part)
    else:
        yield pattern
