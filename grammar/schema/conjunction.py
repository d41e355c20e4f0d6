"""What all parts of one alternative say together, merged type by type."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from typing import Any

from decodex.grammar.errors import ConstraintError
from decodex.grammar.schema.nodes import TYPES, Lit, Members, Node, ObjectPart, Part, key_of

__all__ = ["FALSE", "TRUE", "Conjunction", "Key", "conjoined"]

Key = tuple[Lit, ...]  # a place of the schema: all of these at once
TRUE: Key = ()
FALSE: Key = (Lit(Node("", [("false", None)])),)

Bound = tuple[float, bool] | None  # value, is exclusive


def conjoined(lits: list[Lit]) -> Key:
    """The place where all of these hold; what admits everything is left out, mere references are followed."""
    found: dict[Lit, None] = {}
    stack = lits[::-1]
    while stack:
        lit = stack.pop()
        parts = lit.node.parts
        if parts and (lit.is_positive or len(parts) == 1) and all(kind == "lit" for kind, _ in parts):
            stack += [Lit(one.node, one.is_positive == lit.is_positive) for _, one in reversed(parts)]
        elif parts or not lit.is_positive:
            found[lit] = None
    return tuple(found)


@dataclass
class Conjunction:
    """One alternative. Constraints of a type bind only values of that type; `types` says which types there are."""

    types: frozenset[str] = frozenset(TYPES)
    is_integer: bool = False  # numbers must be whole
    lits: tuple[Lit, ...] = ()  # the schemas that were expanded into this alternative
    enum: list[Any] | None = None
    excluded: tuple[Any, ...] = ()  # values that are not admitted
    blocked: tuple[tuple[str, ConstraintError], ...] = ()  # types that would need what cannot be said
    low: Bound = None
    high: Bound = None
    multiple: Fraction | None = None
    min_length: int = 0
    max_length: int | None = None
    regexes: tuple[str, ...] = ()
    not_regexes: tuple[tuple[str, ConstraintError], ...] = ()
    min_items: int = 0
    max_items: int | None = None
    arrays: tuple[tuple[tuple[Lit, ...], Lit | None], ...] = ()
    contains: tuple[tuple[Lit, int, int | None, int], ...] = ()
    is_unique: bool = False
    objects: tuple[ObjectPart, ...] = ()
    required: tuple[str, ...] = ()
    mentioned: tuple[str, ...] = ()
    min_properties: int = 0
    max_properties: int | None = None
    names: tuple[Lit, ...] = ()
    has: tuple[tuple[ObjectPart, Lit], ...] = ()  # some value of a property that a part's `other` covers is so
    min_unknown: int = 0  # properties that no schema names

    def copy(self, **changes: Any) -> Conjunction:
        return replace(self, **changes)

    def add(self, part: Part) -> None:
        """Merge one leaf part."""
        kind, payload = part
        if kind in _EXTENDS:
            name = _EXTENDS[kind]
            setattr(self, name, (*getattr(self, name), *payload))
        elif kind in _APPENDS:
            name = _APPENDS[kind]
            setattr(self, name, (*getattr(self, name), payload))
        elif kind.startswith("min_"):
            setattr(self, kind, max(getattr(self, kind), payload))
        elif kind.startswith("max_"):
            current = getattr(self, kind)
            setattr(self, kind, payload if current is None else min(current, payload))
        else:
            getattr(self, f"_add_{kind}")(payload)

    def _add_false(self, payload: None) -> None:
        self.types = frozenset()

    def _add_type(self, names: frozenset[str]) -> None:
        if "integer" in names and "number" not in names:
            self.is_integer = True
        self.types &= names | {"number"} if "integer" in names else names

    def _add_enum(self, values: Members) -> None:
        if self.enum is None:
            self.enum = values
        else:
            self.enum = [value for value in self.enum if key_of(value) in values.keys]

    def _add_low(self, bound: tuple[float, bool]) -> None:
        if self.low is None or bound > self.low:
            self.low = bound

    def _add_high(self, bound: tuple[float, bool]) -> None:
        if self.high is None or (-bound[0], bound[1]) > (-self.high[0], self.high[1]):
            self.high = bound

    def _add_multiple(self, step: Fraction) -> None:
        if self.multiple is not None:
            one, other = self.multiple, step
            step = Fraction(
                lcm(one.numerator * other.denominator, other.numerator * one.denominator),
                one.denominator * other.denominator,
            )
        self.multiple = step

    def _add_unique(self, payload: None) -> None:
        self.is_unique = True


_EXTENDS = {"regexes": "regexes", "required": "required", "mention": "mentioned", "exclude": "excluded"}
_APPENDS = {"array": "arrays", "contains": "contains", "object": "objects", "names": "names", "has": "has",
            "blocked": "blocked", "not_regex": "not_regexes", "lits": "lits"}  # fmt: skip
