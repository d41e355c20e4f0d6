"""The last word on the objects of one alternative: every named property with all that binds it, counts written out."""

from __future__ import annotations

from itertools import combinations
from math import comb
from typing import TYPE_CHECKING

from decodex.grammar.errors import ConstraintError
from decodex.grammar.schema.cells import Cell
from decodex.grammar.schema.conjunction import FALSE, TRUE, Conjunction, Key, conjoined
from decodex.grammar.schema.nodes import Lit, ObjectPart
from decodex.grammar.schema.patterns import length_regex
from decodex.grammar.schema.values import admits, schemas_of

if TYPE_CHECKING:
    from decodex.grammar.schema.solver import Solver

__all__ = ["object_cells"]

_STRING_LEAVES = {"minLength", "maxLength", "pattern"}
MAX_OPTIONAL = 2_000  # properties of one object: a parser looks at each of them after every comma
MAX_CHOICES = 64  # alternatives that a count of properties may be written out as


def object_cells(conj: Conjunction, solver: Solver) -> list[Cell]:
    """Alternatives for the objects; none where no object is left."""
    if any(isinstance(value, dict) and value for value in conj.excluded):
        raise ConstraintError("excluding an object that is not empty is not supported", keyword="not")
    if {} in conj.excluded:
        conj = conj.copy(min_properties=max(1, conj.min_properties))
    if conj.has:
        return [cell for one in _having(conj, solver) for cell in object_cells(one, solver)]
    cell = _merged(conj, solver)
    if (num_optional := len(cell.names) - len(cell.required)) > MAX_OPTIONAL:
        reason = f"an object has {num_optional:,} optional properties, at most {MAX_OPTIONAL:,} are allowed"
        raise ConstraintError(reason, keyword="properties")
    if any(solver.is_empty(cell.names[name]) for name in cell.required):
        return []
    return _counted(cell, conj, solver)


def _named(conj: Conjunction) -> list[str]:
    """Every property that is named: first the described ones, in order, then the merely required or mentioned."""
    return list(dict.fromkeys([*(n for part in conj.objects for n in part.names), *conj.mentioned, *conj.required]))


def _merged(conj: Conjunction, solver: Solver) -> Cell:
    """The object with all parts merged; counts are not looked at."""
    names = {n: conjoined([s for part in conj.objects for s in schemas_of(part, n)]) for n in _named(conj)}
    other = conjoined([part.other for part in conj.objects if part.other is not None])
    patterns: dict[str, Key] = {}
    for regexes in dict.fromkeys(regexes for part in conj.objects for regexes, _ in part.patterns):
        if len(regexes) > 1:
            raise ConstraintError("look-ahead in the names of properties is not supported", keyword="patternProperties")
        lits = []
        for part in conj.objects:
            found = [lit for own, lit in part.patterns if own == regexes]
            lits += found or ([] if part.other is None else [part.other])
        patterns[regexes[0]] = conjoined(lits)
    cell = Cell(types=("object",), leaves={"type": "object"}, names=names, patterns=patterns, other=other)
    cell.required = tuple(dict.fromkeys(conj.required))
    for lit in conj.names:
        _restrict_names(cell, lit, conj, solver)
    cell.names = {name: cell.names[name] for name in _named(conj) if name in cell.names} | cell.names
    return cell


def _restrict_names(cell: Cell, lit: Lit, conj: Conjunction, solver: Solver) -> None:
    """Apply `propertyNames`."""
    for name in cell.names:
        if not admits(lit, name):
            cell.names[name] = FALSE
    strings = [c for c in solver.solve(conjoined([lit])) if c.values is not None or "string" in c.types]
    if any(c.values is None and not _STRING_LEAVES & set(c.leaves) for c in strings):
        return
    if cell.patterns:
        raise ConstraintError("propertyNames beside patternProperties is not supported", keyword="propertyNames")
    patterns: dict[str, Key] = {}
    for found in strings:
        if found.values is not None:
            for name in found.values:
                if isinstance(name, str) and name not in cell.names:
                    cell.names[name] = conjoined([s for part in conj.objects for s in schemas_of(part, name)])
            continue
        leaves = found.leaves
        regexes = list(leaves.get("pattern", ()))
        if "minLength" in leaves or "maxLength" in leaves:
            regexes.append(length_regex(leaves.get("minLength", 0), leaves.get("maxLength")))
        if len(regexes) > 1 or patterns:
            raise ConstraintError("these propertyNames are not supported", keyword="propertyNames")
        patterns[regexes[0]] = cell.other
    cell.patterns, cell.other = patterns, FALSE


def _having(conj: Conjunction, solver: Solver) -> list[Conjunction]:
    """Alternatives for the first `has`: which property, named or not, is the one."""
    (part, lit), rest = conj.has[0], conj.has[1:]
    base = conj.copy(has=rest, mentioned=(*conj.mentioned, *part.names))
    if part.patterns:
        raise ConstraintError("the negation of additionalProperties is not supported here", keyword="not")
    options = []
    for name in _named(base):
        if name not in part.names:
            one = base.copy(required=(*base.required, name), objects=(*base.objects, ObjectPart({name: lit}, (), None)))
            options.append(one)
    merged = _merged(base, solver)
    if not solver.is_empty(merged.other) or any(not solver.is_empty(key) for key in merged.patterns.values()):
        if conjoined([lit]) != TRUE and lit.node.parts != [("false", None)]:
            raise ConstraintError("the negation of additionalProperties is not supported here", keyword="not")
        options.append(base.copy(min_unknown=1))
    return options


def _counted(cell: Cell, conj: Conjunction, solver: Solver) -> list[Cell]:
    """minProperties and maxProperties, written out over the optional properties where they bind."""
    low, high = conj.min_properties, conj.max_properties
    if low <= len(cell.required) and high is None and not conj.min_unknown:
        return [cell]
    names = {n: FALSE if n not in cell.required and solver.is_empty(key) else key for n, key in cell.names.items()}
    patterns = {regex: key for regex, key in cell.patterns.items() if not solver.is_empty(key)}
    is_open = not solver.is_empty(cell.other) or bool(patterns)
    optional = [n for n, key in names.items() if key != FALSE and n not in cell.required]
    num_required = len(cell.required)
    if high is not None and num_required > high:
        return []
    if not is_open:
        return _closed(cell, names, optional, (low - num_required, None if high is None else high - num_required))
    if conj.min_unknown == 0 and low <= num_required and high is None:
        return [cell]
    return _open(cell, names, optional, (low, high, conj.min_unknown))


def _variant(cell: Cell, names: dict[str, Key], present: tuple[str, ...], absent: set[str]) -> Cell:
    return Cell(
        types=cell.types,
        leaves=dict(cell.leaves),
        names={name: FALSE if name in absent else key for name, key in names.items()},
        required=tuple(name for name in names if name in present or name in cell.required),
        patterns=cell.patterns,
        other=cell.other,
    )


def _closed(cell: Cell, names: dict[str, Key], optional: list[str], more: tuple[int, int | None]) -> list[Cell]:
    """At least and at most so many of the optional properties, where there are no others."""
    least, most = max(0, more[0]), len(optional) if more[1] is None else min(more[1], len(optional))
    if least > most:
        return []
    if least == 0 and most == len(optional):
        return [_variant(cell, names, (), set())]
    if most == len(optional):
        _bound(comb(len(optional), least), "minProperties")
        found = []
        for present in combinations(range(len(optional)), least):  # the first `least` that are there
            absent = {optional[i] for i in range(present[-1]) if i not in present}
            found.append(_variant(cell, names, tuple(optional[i] for i in present), absent))
        return found
    _bound(comb(len(optional), most), "maxProperties")
    found = []
    for allowed in combinations(optional, most):
        part = _variant(cell, names, (), set(optional) - set(allowed))
        found += _closed(part, part.names, list(allowed), (least, None))
    return found


def _open(cell: Cell, names: dict[str, Key], optional: list[str], counts: tuple[int, int | None, int]) -> list[Cell]:
    """Counts where further properties may come: backends count these only when no named one is optional."""
    low, high, unknown = counts
    if low > len(cell.required) + 1 and not (low <= len(cell.required) + unknown):
        raise ConstraintError("minProperties above one counts names that may repeat", keyword="minProperties")
    if high is None and unknown == 0:  # one more than required: an optional one, or an unknown one
        chains = [_variant(cell, names, (n,), set(optional[:i])) for i, n in enumerate(optional)]
        subsets: list[tuple[str, ...]] = [()]
    else:
        _bound(2 ** len(optional), "maxProperties")
        chains, subsets = [], [s for k in range(len(optional) + 1) for s in combinations(optional, k)]
    for present in subsets:
        part = _variant(cell, names, present, set(optional) - set(present))
        num = len(part.required)
        least = max(num + unknown, low) if max(num + unknown, low) > num else 0
        if high is not None and max(num, least) > high:
            continue
        part.leaves.update({"minProperties": least} if least else {})
        part.leaves.update({} if high is None else {"maxProperties": high})
        chains.append(part)
    return chains


def _bound(count: int, keyword: str) -> None:
    if count > MAX_CHOICES:
        raise ConstraintError(f"{keyword} would need {count} alternatives, the limit is {MAX_CHOICES}", keyword=keyword)
