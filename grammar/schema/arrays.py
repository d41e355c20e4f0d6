"""The last word on the arrays of one alternative: items merged, `contains` and `uniqueItems` by position or value."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any

from decodex.grammar.errors import ConstraintError
from decodex.grammar.schema.cells import Cell
from decodex.grammar.schema.conjunction import FALSE, TRUE, Conjunction, Key, conjoined
from decodex.grammar.schema.nodes import Lit

if TYPE_CHECKING:
    from decodex.grammar.schema.solver import Solver

__all__ = ["array_cells"]

MAX_POSITIONS = 16  # where an item that must occur may stand
MAX_UNIQUE = 5  # different values whose orders are written out


def array_cells(conj: Conjunction, solver: Solver) -> list[Cell]:
    """Alternatives for the arrays; none where no array is left."""
    length = max((len(prefix) for prefix, _ in conj.arrays), default=0)
    prefix = [conjoined(_at(conj, i)) for i in range(length)]
    rest = conjoined([lit for _, lit in conj.arrays if lit is not None])
    low, high = conj.min_items, conj.max_items
    if [] in conj.excluded:
        low = max(low, 1)
    if any(isinstance(value, list) and value for value in conj.excluded):
        raise ConstraintError("excluding an array that is not empty is not supported", keyword="not")
    wanted = []
    for lit, least, most, start in conj.contains:
        if most == 0:  # no item at all is so
            avoid = Lit(lit.node, not lit.is_positive)
            while len(prefix) < start:
                prefix.append(rest)
            prefix = [conjoined([*key, avoid]) if i >= start else key for i, key in enumerate(prefix)]
            rest = conjoined([*rest, avoid])
        elif most is not None:
            raise ConstraintError("maxContains is not supported here", keyword="maxContains")
        elif least:
            wanted.append((lit, least, start))
    return [
        cell
        for shape in _containing((prefix, rest, low, high), wanted, solver)
        for cell in _cells(shape, conj.is_unique, solver)
    ]


def _at(conj: Conjunction, index: int) -> list[Lit]:
    found = []
    for prefix, rest in conj.arrays:
        if index < len(prefix):
            found.append(prefix[index])
        elif rest is not None:
            found.append(rest)
    return found


Shape = tuple[list[Key], Key, int, int | None]


def _containing(shape: Shape, wanted: list[tuple[Lit, int, int]], solver: Solver) -> list[Shape]:
    """The shapes in which every wanted item stands at some position."""
    shapes = [shape]
    for lit, least, start in wanted:
        found = []
        for prefix, rest, low, high in shapes:
            if start >= len(prefix) and _all_are(rest, lit, solver):
                found.append((prefix, rest, max(low, start + least), high))
                continue
            end = high if high is not None else len(prefix) if rest == FALSE or solver.is_empty(rest) else None
            if end is None or end > MAX_POSITIONS or least > 1:
                if end is not None and end < start + least:
                    continue
                raise ConstraintError(
                    "an item that must occur at an open position is not supported", keyword="contains"
                )
            for position in range(start, end):
                longer = [*prefix, *([rest] * (position + 1 - len(prefix)))]
                longer[position] = conjoined([*longer[position], lit])
                if not solver.is_empty(longer[position]):
                    found.append((longer, rest, max(low, position + 1), high))
        shapes = found
    return shapes


def _all_are(rest: Key, lit: Lit, solver: Solver) -> bool:
    """Whether every further item is so anyway: then only their number matters."""
    return lit in rest or solver.is_empty(conjoined([*rest, Lit(lit.node, not lit.is_positive)]))


def _cells(shape: Shape, is_unique: bool, solver: Solver) -> list[Cell]:
    """One shape with impossible positions cut off."""
    prefix, rest, low, high = shape
    for i, key in enumerate(prefix):
        if solver.is_empty(key):
            high = i if high is None else min(high, i)
            break
    if (rest != TRUE and solver.is_empty(rest)) and (high is None or high > len(prefix)):
        high = len(prefix)
    if high is not None and low > high:
        return []
    if high is not None and len(prefix) >= high:
        prefix, rest = prefix[:high], FALSE
    if is_unique and (high is None or high > 1):
        values = _orders(prefix, rest, (low, high), solver)
        if values is not None:
            return [Cell(values=values)]
    leaves = {"type": "array", **({"minItems": low} if low else {}), **({} if high is None else {"maxItems": high})}
    return [Cell(types=("array",), leaves=leaves, prefix=tuple(prefix), rest=rest)]


def _orders(prefix: list[Key], rest: Key, counts: tuple[int, int | None], solver: Solver) -> list[Any] | None:
    """All arrays of different values, where the items have few values; None where positions differ anyway."""
    low, high = counts
    if not prefix and (values := solver.values(rest)) is not None and len(values) <= MAX_UNIQUE:
        top = len(values) if high is None else min(high, len(values))
        return [list(order) for size in range(low, top + 1) for order in permutations(values, size)]
    if high is not None and high <= len(prefix) and high <= MAX_POSITIONS:
        pairs = [conjoined([*one, *two]) for i, one in enumerate(prefix) for two in prefix[:i]]
        if all(solver.is_empty(pair) for pair in pairs):
            return None
    raise ConstraintError("uniqueItems is not supported here", keyword="uniqueItems")
