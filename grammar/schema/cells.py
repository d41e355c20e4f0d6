"""What a place of a canonical schema admits: cells, each a list of values or one alternative with places below it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from decodex.grammar.schema.conjunction import TRUE, Key

__all__ = ["Cell"]


@dataclass
class Cell:
    """One alternative, nothing left to work out.

    values: the only values, where not None (then the rest is empty). types: JSON type names, "integer" for whole
    numbers only. leaves: keywords of numbers, strings and counts. names, patterns, other: places of the properties.
    prefix, rest: places of the items.
    """

    values: list[Any] | None = None
    types: tuple[str, ...] = ()
    leaves: dict[str, Any] = field(default_factory=dict)
    names: dict[str, Key] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    patterns: dict[str, Key] = field(default_factory=dict)
    other: Key = TRUE
    prefix: tuple[Key, ...] = ()
    rest: Key = TRUE
