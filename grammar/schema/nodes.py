"""Schemas as nodes of parts: what every draft says, in one vocabulary, with references as edges.

A part is (kind, payload). Leaf kinds are the keywords of draft 2020-12 (`const` is an enum of one); `lit` asserts
another node or its negation, `any`/`one` offer alternatives. A node says all of its parts at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from decodex.grammar.errors import ConstraintError

__all__ = ["TYPES", "Lit", "Node", "ObjectPart", "Part", "refuse"]

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


def refuse(node: Node | str, keyword: str, reason: str) -> ConstraintError:
    """The refusal to raise for a keyword of a node."""
    return ConstraintError(reason, path=node if isinstance(node, str) else node.path, keyword=keyword)
