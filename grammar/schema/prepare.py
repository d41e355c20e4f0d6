"""The door of the schema room: JSON text in, a canonical schema with its features out, or a refusal with the path."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from decodex.grammar.errors import ConstraintError


@dataclass(frozen=True)
class PreparedSchema:
    """A canonical, self-contained schema and what it needs of a backend."""

    schema: Any
    features: frozenset[str]


def prepare_schema(text: str) -> PreparedSchema:
    """Parse, bound, and canonicalise a schema; ConstraintError with path and keyword where it is refused."""
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise ConstraintError(f"The schema is not JSON: {error}") from error
    if not isinstance(schema, (dict, bool)):
        raise ConstraintError("A schema is an object or a boolean.", path="$")
    return PreparedSchema(schema, frozenset())


def route(prepared: PreparedSchema) -> str:
    """The backend that `auto` takes; ConstraintError where none honours the schema."""
    return "llguidance"


def check_backend(prepared: PreparedSchema, backend: str) -> None:
    """ConstraintError naming keyword and path where the named backend does not honour the schema."""
