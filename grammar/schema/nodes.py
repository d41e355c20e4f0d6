"""Schemas as nodes of parts: what every draft says, in one vocabulary, with references as edges.

A part is (kind, payload). Leaf kinds are the keywords of draft 2020-12 (`const` is an enum of one); `lit` asserts
another node or its negation, `any`/`one` offer alternatives. A node says all of its parts at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from decodex.grammar.errors import ConstraintError

__all__ = ["TYPES", "Lit", "Members", "Node", "ObjectPart", "Part", "key_of", "refuse"]

TYPES = ("null", "boolean", "number", "string", "array", "object")

Part = tuple[str, Any]


@dataclass(eq=False)
class Node:
    """One schema. parts: in document order; a node without parts admits everything."""

    path: str
    parts: list[Part] = field(default_factory=list)

    def __repr__(self) -> str:  # nodes form cycles
        return f"Node({self.path})"


class Lit(NamedTuple):
    """A node, or (is_positive False) its negation."""

    node: Node
    is_positive: bool = True


class ObjectPart(NamedTuple):
    """`properties`, `patternProperties` and `additionalProperties` of one schema, which belong together.

    patterns: whole-text regexes (all of a tuple must match) and their schemas; other: None admits anything.
    """

    names: dict[str, Lit]
    patterns: tuple[tuple[tuple[str, ...], Lit], ...]
    other: Lit | None


def key_of(value: Any) -> Hashable:
    """Equal keys for values that JSON Schema calls equal (1 and 1.0 are, 1 and true are not)."""
    if isinstance(value, bool) or value is None:
        return ("literal", value)
    if isinstance(value, list):
        return ("array", tuple(map(key_of, value)))
    if isinstance(value, dict):
        return ("object", frozenset((name, key_of(item)) for name, item in value.items()))
    return value if isinstance(value, str) else ("number", value)


class Members(list[Any]):
    """The values of an enum; `keys` are theirs."""

    def __init__(self, values: Iterable[Any]) -> None:
        super().__init__(values)
        self.keys = frozenset(map(key_of, self))


def refuse(node: Node | str, keyword: str, reason: str) -> ConstraintError:
    """The refusal to raise for a keyword of a node."""
    return ConstraintError(reason, path=node if isinstance(node, str) else node.path, keyword=keyword)
