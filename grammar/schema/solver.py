"""The alternatives of every place of a schema: parts merged, choices multiplied out, contradictions dropped.

A place is a set of schemas that must all hold (or not hold) there. Places are solved once each; a schema that refers
to itself comes back to a place that is known, so the work ends.
"""

from __future__ import annotations

from typing import Any

from decodex.grammar.errors import ConstraintError
from decodex.grammar.schema.arrays import array_cells
from decodex.grammar.schema.cells import Cell
from decodex.grammar.schema.conjunction import FALSE, TRUE, Conjunction, Key
from decodex.grammar.schema.negation import negated
from decodex.grammar.schema.nodes import TYPES, Lit, Part, key_of
from decodex.grammar.schema.objects import object_cells
from decodex.grammar.schema.scalars import number_leaves, string_leaves
from decodex.grammar.schema.values import admits, plain, type_of

__all__ = ["Solver"]

MAX_ALTERNATIVES = 400  # of one place
MAX_PLACES = 20_000
MAX_LOOK = 12  # places inside each other that are looked into before one is assumed to admit something
MAX_PROBES = 3  # questions inside each other whether alternatives of a `oneOf` meet
MAX_STEPS = 30_000  # alternatives that one schema may be expanded into

Choice = list[list[Part]] | list[Lit]


class Solver:
    """Solves places; owns what is known of them."""

    def __init__(self) -> None:
        self.solved: dict[Key, list[Cell]] = {TRUE: [Cell(types=TYPES)], FALSE: []}
        self.open: set[Key] = set()
        self.num_steps = self.num_probes = 0

    def solve(self, key: Key) -> list[Cell]:
        """The alternatives of a place; ConstraintError, with the path, where they cannot be said exactly."""
        if key not in self.solved:
            if len(self.solved) > MAX_PLACES:
                raise ConstraintError("the schema multiplies out to too many places", path=_path(key))
            self.open.add(key)
            try:
                self.solved[key] = self._solve(key)
            except ConstraintError as error:
                if error.path:
                    raise
                raise ConstraintError(error.reason, path=_path(key), keyword=error.keyword) from error
            finally:
                self.open.discard(key)
        return self.solved[key]

    def is_empty(self, key: Key) -> bool:
        """Whether a place certainly admits nothing."""
        if key in self.solved:
            return not self.solved[key]
        if key in self.open or len(self.open) > MAX_LOOK:
            return False
        try:
            return not self.solve(key)
        except TooManySteps:
            raise
        except ConstraintError:
            return False

    def values(self, key: Key) -> list[Any] | None:
        """All values of a place, where they are few."""
        found: list[Any] = []
        for cell in self.solve(key) if key not in self.open else [Cell()]:
            if cell.values is not None:
                found += cell.values
            elif set(cell.types) <= {"null", "boolean"} and cell.types:
                found += [None] if "null" in cell.types else []
                found += [False, True] if "boolean" in cell.types else []
            else:
                return None
        return list({key_of(value): value for value in found}.values())

    def _solve(self, key: Key) -> list[Cell]:
        cells: list[Cell] = []
        for conj in self._expand(Conjunction(), [("lit", lit) for lit in key], [], Budget()):
            cells += [cell for cell in self._finish(conj) if cell not in cells]
        return cells

    def _expand(self, conj: Conjunction, parts: list[Part], choices: list[Choice], budget: Budget) -> list[Conjunction]:
        """Merge the parts into the conjunction, then multiply out the choices."""
        self.num_steps += 1
        if self.num_steps > MAX_STEPS:
            raise TooManySteps("the schema's alternatives multiply out to too many", path="$", keyword="oneOf")
        choices = list(choices)
        stack = parts[::-1]
        while stack:
            kind, payload = stack.pop()
            if kind == "lit":
                conj.add(("lits", payload))
                if payload.is_positive:
                    stack.extend(payload.node.parts[::-1])
                else:
                    choices.append(negated(payload.node))
            elif kind in ("any", "one"):
                choices.append(payload)
            else:
                conj.add((kind, payload))
        if not conj.types or conj.enum is not None:
            return [conj] if conj.types else []
        return self._choose(conj, choices, budget)

    def _choose(self, conj: Conjunction, choices: list[Choice], budget: Budget) -> list[Conjunction]:
        if not choices:
            budget.spend()
            return [conj]
        choice, rest = choices[0], choices[1:]
        options = choice
        if choice and isinstance(choice[0], Lit):
            options = self._exclusive(conj, choice)
        found: list[Conjunction] = []
        for option in options:
            found += self._expand(conj.copy(), option, rest, budget)  # type: ignore[arg-type]
        return found

    def _exclusive(self, conj: Conjunction, lits: list[Lit]) -> list[list[Part]]:
        """`oneOf` as alternatives: each with the negation of those that it is not provably apart from."""
        unsatisfied = [lit for lit in lits if not self._meets(conj, [lit])]
        alive = [lit for lit in lits if lit not in unsatisfied]
        options: list[list[Part]] = []
        for one in alive:
            others = [lit for lit in alive if lit is not one and self._meets(conj, [one, lit])]
            options.append([("lit", one), *(("lit", Lit(lit.node, not lit.is_positive)) for lit in others)])
        return options

    def _meets(self, conj: Conjunction, lits: list[Lit]) -> bool:
        """Whether some value may satisfy the conjunction and all of these."""
        if self.num_probes >= MAX_PROBES:
            return True
        self.num_probes += 1
        try:
            found = self._expand(conj.copy(), [("lit", lit) for lit in lits], [], Budget())
            return any(self._finish(one, tuple(lits)) for one in found)
        except TooManySteps:
            raise
        except ConstraintError:
            return True
        finally:
            self.num_probes -= 1

    def _finish(self, conj: Conjunction, lits: Key | None = None) -> list[Cell]:
        """The cells of one alternative. lits: what values are checked against, where not everything is decided yet."""
        if conj.enum is not None:
            asked = conj.lits if lits is None else lits
            values = [v for v in conj.enum if type_of(v) in conj.types and all(admits(lit, v) for lit in asked)]
            values = [plain(value) for value in values]
            values = list({key_of(value): value for value in values}.values())
            return [Cell(values=values)] if values else []
        literals = {v for v in conj.excluded if v is None or isinstance(v, bool)}
        types, cells = set(conj.types), []
        if None in literals:
            types.discard("null")
        if "boolean" in types and literals & {True, False}:
            types.discard("boolean")
            left = [v for v in (True, False) if v not in literals]
            cells += [Cell(values=left)] if left else []
        simple = Cell(types=tuple(name for name in ("null", "boolean") if name in types))
        cells += [simple] if simple.types else []
        if "number" in types:
            cells += [Cell(types=(leaves["type"],), leaves=leaves) for leaves in number_leaves(conj)]
        if "string" in types and (leaves := string_leaves(conj)) is not None:
            cells.append(Cell(types=("string",), leaves=leaves))
        if "array" in types:
            cells += array_cells(conj, self)
        if "object" in types:
            cells += object_cells(conj, self)
        for name, error in conj.blocked:
            if any(name in cell.types or (name == "number" and "integer" in cell.types) for cell in cells):
                raise error
        return _joined(cells)


class TooManySteps(ConstraintError):
    """The work is over its limit; never taken for an answer."""


class Budget:
    """How many alternatives one place may still have."""

    def __init__(self) -> None:
        self.left = MAX_ALTERNATIVES

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            reason = f"the schema multiplies out to more than {MAX_ALTERNATIVES} alternatives"
            raise ConstraintError(reason, keyword="anyOf")


def _joined(cells: list[Cell]) -> list[Cell]:
    """Cells of different types that fit into one: their keywords do not touch each other."""
    found: list[Cell] = []
    taken: set[str] = set()
    for cell in cells:
        kinds = {"number" if name == "integer" else name for name in cell.types}
        if cell.values is None and found and found[0].values is None and not kinds & taken:
            first = found[0]
            first.types += cell.types
            first.leaves = {**first.leaves, **cell.leaves}
            if "object" in kinds:
                first.names, first.required = cell.names, cell.required
                first.patterns, first.other = cell.patterns, cell.other
            if "array" in kinds:
                first.prefix, first.rest = cell.prefix, cell.rest
        elif cell.values is None:
            found.insert(0, cell) if not found or found[0].values is not None else found.append(cell)
        else:
            found.append(cell)
        taken |= kinds if cell.values is None else set()
    for cell in found:
        cell.leaves.pop("type", None)
    return found


def _path(key: Key) -> str:
    return next((lit.node.path for lit in key if lit.node.path), "$")
