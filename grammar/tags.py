"""Structural tags: free text in which markers begin parts that follow a schema, a regex or a grammar."""

from __future__ import annotations

from dataclasses import dataclass

from decodex.grammar.errors import ConstraintError

__all__ = ["Tags", "parse_tags"]


@dataclass(frozen=True)
class Tags:
    """Being written."""


def parse_tags(text: str) -> Tags:
    """The tags of a JSON description."""
    raise ConstraintError("structural tags are not supported yet")
