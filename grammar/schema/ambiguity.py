"""Which patterns are catastrophic: those whose automaton has two ways around one loop for the same text.

Our own engines are linear, but a schema's user will validate with a backtracking one (ours included), which such a
pattern blocks for ever. Positions of the pattern are the states (Glushkov); the pattern is exponential exactly when,
in the product of the automaton with itself, a state (p, p) reaches a state (q, r) with q != r and comes back.
"""

from __future__ import annotations

from decodex.grammar.schema.regex_tree import Alt, Cat, Chars, Part, Rep

__all__ = ["is_exponential"]

MAX_POSITIONS = 120  # beyond, the nested repetition counts as exponential
COPIES = 2  # of a counted repetition: enough for the order of its parts


def is_exponential(tree: Part) -> bool:
    """Whether a loop of the pattern that contains another loop is ambiguous."""
    return any(_is_ambiguous(loop) for loop in _nested_loops(tree))


def _parts(tree: Part) -> tuple[Part, ...]:
    if isinstance(tree, Cat):
        return tree.parts
    if isinstance(tree, Alt):
        return tree.options
    return (tree.body,) if isinstance(tree, Rep) else ()


def _is_loop(tree: Part) -> bool:
    return isinstance(tree, Rep) and tree.high is None


def _has_choice(tree: Part) -> bool:
    return (
        (isinstance(tree, Rep) and tree.high != tree.low)
        or isinstance(tree, Alt)
        or any(map(_has_choice, _parts(tree)))
    )


def _nested_loops(tree: Part) -> list[Rep]:
    """Outermost loops with a choice inside."""
    if isinstance(tree, Rep) and _is_loop(tree) and _has_choice(tree.body):
        return [tree]
    return [loop for part in _parts(tree) for loop in _nested_loops(part)]


class _Automaton:
    """Positions, their classes, and which position may follow which."""

    def __init__(self) -> None:
        self.classes: list[Chars] = []
        self.follow: list[set[int]] = []
        self.has_double_edge = False  # a loop's way back that exists inside already, as in (a+)+

    def add(self, tree: Part) -> tuple[bool, set[int], set[int]]:
        """Nullable, first and last positions of a part."""
        if isinstance(tree, Chars):
            self.classes.append(tree)
            self.follow.append(set())
            return False, {len(self.classes) - 1}, {len(self.classes) - 1}
        if isinstance(tree, Alt):
            found = [self.add(option) for option in tree.options]
            return any(f[0] for f in found), set().union(*(f[1] for f in found)), set().union(*(f[2] for f in found))
        if isinstance(tree, Cat):
            return self.chain(tree.parts)
        if isinstance(tree, Rep):
            return self.repeat(tree)
        return True, set(), set()

    def chain(self, parts: tuple[Part, ...]) -> tuple[bool, set[int], set[int]]:
        nullable, first, last = True, set[int](), set[int]()
        for part in parts:
            empty, starts, ends = self.add(part)
            for position in last:
                self.follow[position] |= starts
            first |= starts if nullable else set()
            last = ends | (last if empty else set())
            nullable &= empty
        return nullable, first, last

    def repeat(self, tree: Rep) -> tuple[bool, set[int], set[int]]:
        if tree.high is not None:
            copies = min(tree.high, COPIES)
            optional = Rep(tree.body, 0, 1)
            if tree.high <= 1:
                nullable, first, last = self.add(tree.body) if tree.high else (True, set[int](), set[int]())
                return nullable or tree.low == 0, first, last
            return self.chain(tuple(tree.body if i < tree.low else optional for i in range(copies)))
        nullable, first, last = self.add(tree.body)
        for position in last:
            self.has_double_edge |= not first.isdisjoint(self.follow[position])
            self.follow[position] |= first
        return nullable or tree.low == 0, first, last


def _overlap(one: Chars, other: Chars) -> bool:
    if one.properties or other.properties:
        return True
    if one.negated and other.negated:
        return True
    if one.negated or other.negated:
        negated, plain = (one, other) if one.negated else (other, one)
        return not all(any(a <= low and high <= b for a, b in negated.ranges) for low, high in plain.ranges)
    return any(a <= high and low <= b for a, b in one.ranges for low, high in other.ranges)


def _is_ambiguous(loop: Rep) -> bool:
    automaton = _Automaton()
    try:
        automaton.add(loop)
    except RecursionError:
        return True
    count = len(automaton.classes)
    if count > MAX_POSITIONS or automaton.has_double_edge:
        return True
    meet = [[_overlap(a, b) for b in automaton.classes] for a in automaton.classes]
    edges = {
        (p, q): [(a, b) for a in automaton.follow[p] for b in automaton.follow[q] if meet[a][b]]
        for p in range(count)
        for q in range(count)
        if meet[p][q]
    }
    back: dict[tuple[int, int], list[tuple[int, int]]] = {pair: [] for pair in edges}
    for pair, targets in edges.items():
        for target in targets:
            back[target].append(pair)
    for p in range(count):
        forward, backward = _reach(edges, (p, p)), _reach(back, (p, p))
        if any(q != r for q, r in forward & backward):
            return True
    return False


def _reach(edges: dict[tuple[int, int], list[tuple[int, int]]], start: tuple[int, int]) -> set[tuple[int, int]]:
    seen, stack = {start}, [start]
    while stack:
        for target in edges[stack.pop()]:
            if target not in seen:
                seen.add(target)
                stack.append(target)
    return seen
