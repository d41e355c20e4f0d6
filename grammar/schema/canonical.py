"""The canonical schema: places that admit something, written as JSON in a small, fixed part of draft 2020-12.

It has only `type`, `enum`, `anyOf`, `$ref` to `$defs`, numeric bounds and `multipleOf`, lengths and whole-text patterns
(`allOf` where several must match), `properties`, `required`, `patternProperties`, `additionalProperties`, counts of
properties and items, `prefixItems` and `items`. No keyword beside `anyOf` or `$ref`.
"""

from __future__ import annotations

import json
import re
from typing import Any

from decodex.grammar.errors import ConstraintError
from decodex.grammar.schema.cells import Cell
from decodex.grammar.schema.conjunction import FALSE, TRUE, Key
from decodex.grammar.schema.solver import Solver

__all__ = ["canonical_schema"]

MAX_INLINE = 24  # places inside each other before one is moved to `$defs`


def canonical_schema(root: Key) -> Any:
    """The canonical JSON schema of a place: False where it admits nothing. ConstraintError where it cannot be said."""
    solver = Solver()
    uses = _solve_all(root, solver)
    cells = _inhabited(solver, uses)
    if not cells[root]:
        return False
    return _Writer(cells, uses).document(root)


def _solve_all(root: Key, solver: Solver) -> dict[Key, int]:
    """Solve every place below the root; how often each is named."""
    uses, stack = {root: 1}, [root]
    while stack:
        for cell in solver.solve(stack.pop()):
            for key in _below(cell):
                if key not in uses:
                    stack.append(key)
                uses[key] = uses.get(key, 0) + 1
    return uses


def _below(cell: Cell) -> list[Key]:
    return [*cell.names.values(), *cell.patterns.values(), cell.other, *cell.prefix, cell.rest]


def _inhabited(solver: Solver, uses: dict[Key, int]) -> dict[Key, list[Cell]]:
    """The cells of each place without those that admit nothing (a smallest fixed point: an endless value is none)."""
    alive: set[Key] = set()
    users: dict[Key, set[Key]] = {key: set() for key in uses}
    for key in uses:
        for cell in solver.solve(key):
            for need in [*_object_needs(cell), *_array_needs(cell)]:
                users[need].add(key)
    pending = list(uses)
    while pending:
        key = pending.pop()
        if key not in alive and any(_types_alive(cell, alive) for cell in solver.solve(key)):
            alive.add(key)
            pending += users[key]
    return {key: [c for cell in solver.solve(key) if (c := _without_dead(cell, alive)) is not None] for key in uses}


def _object_needs(cell: Cell) -> list[Key]:
    return [cell.names[name] for name in cell.required]


def _array_needs(cell: Cell) -> list[Key]:
    low = cell.leaves.get("minItems", 0)
    return [*cell.prefix[:low], *([cell.rest] if low > len(cell.prefix) else [])]


def _types_alive(cell: Cell, alive: set[Key]) -> tuple[str, ...]:
    """The types of a cell that admit something."""
    needs = {"object": _object_needs(cell), "array": _array_needs(cell)}
    if cell.values is not None:
        return ("values",) if cell.values else ()
    return tuple(name for name in cell.types if all(key in alive for key in needs.get(name, ())))


def _without_dead(cell: Cell, alive: set[Key]) -> Cell | None:
    types = _types_alive(cell, alive)
    if not types or cell.values is not None:
        return cell if types else None
    dead = {key: FALSE if key not in alive else key for key in _below(cell)}
    return Cell(
        types=types, leaves=cell.leaves, names={name: dead[key] for name, key in cell.names.items()},
        required=cell.required, patterns={regex: dead[key] for regex, key in cell.patterns.items()},
        other=dead[cell.other], prefix=tuple(dead[key] for key in cell.prefix), rest=dead[cell.rest],
    )  # fmt: skip


class _Writer:
    """Writes places as JSON; what is used twice goes to `$defs`."""

    def __init__(self, cells: dict[Key, list[Cell]], uses: dict[Key, int]) -> None:
        self.cells, self.uses = {**cells, FALSE: [], TRUE: cells.get(TRUE, [])}, uses
        self.defs: dict[Key, str] = {}
        self.pending: list[Key] = []

    def document(self, root: Key) -> Any:
        schema = self.place(root, 0)
        written: dict[str, Any] = {}
        while self.pending:
            key = self.pending.pop()
            written[self.defs[key]] = self.content(key, 1)
        if not written:
            return schema
        return {**(schema if isinstance(schema, dict) else {}), "$defs": dict(sorted(written.items()))}

    def place(self, key: Key, depth: int) -> Any:
        """The schema of a place, or a reference to it."""
        if key == TRUE:
            return True
        if not self.cells[key]:
            return False
        is_shared = self.uses[key] > 1 and self.is_composite(key)
        if not is_shared and depth < MAX_INLINE:
            return self.content(key, depth)
        if key not in self.defs:
            self.defs[key] = f"d{len(self.defs)}"
            self.pending.append(key)
        return {"$ref": f"#/$defs/{self.defs[key]}"}

    def is_composite(self, key: Key) -> bool:
        return any(cell.names or cell.patterns or cell.prefix or cell.other or cell.rest or len(cell.values or ()) > 8
                   for cell in self.cells[key])  # fmt: skip

    def content(self, key: Key, depth: int) -> Any:
        values = [value for cell in self.cells[key] if cell.values is not None for value in cell.values]
        options = [self.alternative(cell, depth) for cell in self.cells[key] if cell.values is None]
        if values:
            check_spelling(json.dumps(values, ensure_ascii=False))
            options.append({"enum": values})
        return options[0] if len(options) == 1 else {"anyOf": options}

    def alternative(self, cell: Cell, depth: int) -> Any:
        schema: dict[str, Any] = {"type": cell.types[0] if len(cell.types) == 1 else list(cell.types)}
        for key, value in cell.leaves.items():
            if key == "pattern":
                schema["pattern"] = value[0]
                if value[1:]:
                    schema["allOf"] = [{"pattern": regex} for regex in value[1:]]
            else:
                schema[key] = value
        if "object" in cell.types:
            self.add_object(schema, cell, depth + 1)
        if "array" in cell.types:
            self.add_array(schema, cell, depth + 1)
        return True if schema == {"type": list(_ALL)} else schema

    def add_object(self, schema: dict[str, Any], cell: Cell, depth: int) -> None:
        check_spelling(json.dumps([*cell.names], ensure_ascii=False))
        is_closed = not cell.patterns and cell.other == FALSE
        names = {name: self.place(key, depth) for name, key in cell.names.items() if key != FALSE or not is_closed}
        patterns = {regex: self.place(key, depth) for regex, key in cell.patterns.items()}
        schema.update({"properties": names} if names else {})
        schema.update({"required": list(cell.required)} if cell.required else {})
        schema.update({"patternProperties": patterns} if patterns else {})
        schema.update({} if cell.other == TRUE else {"additionalProperties": self.place(cell.other, depth)})

    def add_array(self, schema: dict[str, Any], cell: Cell, depth: int) -> None:
        prefix = [self.place(key, depth) for key in cell.prefix]
        schema.update({"prefixItems": prefix} if prefix else {})
        schema.update({} if cell.rest == TRUE else {"items": self.place(cell.rest, depth)})


_UNSPELLED = re.compile(r"\\u00[01]|[\x00-\x1f\x7f]")


def check_spelling(text: str) -> None:
    """Refuse names and values with control characters that have no short escape: no backend writes them."""
    if _UNSPELLED.search(text):
        raise ConstraintError("control characters without a short escape are not supported", path="$", keyword="enum")


_ALL = ("null", "boolean", "number", "string", "array", "object")
