"""The door of the schema room: JSON text in, a canonical schema with its features out, or a refusal with the path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from decodex.grammar.errors import ConstraintError
from decodex.grammar.schema.canonical import canonical_schema
from decodex.grammar.schema.conjunction import conjoined
from decodex.grammar.schema.dialect import read_schema
from decodex.grammar.schema.features import BEYOND, features_of
from decodex.grammar.schema.inplace import check_cycles, reachable, resolve_unevaluated
from decodex.grammar.schema.nodes import Lit
from decodex.grammar.schema.numbers import first_beyond
from decodex.grammar.schema.routing import check_backend as check_features
from decodex.grammar.schema.routing import route_features
from decodex.grammar.schema.text import parse_schema

__all__ = ["PreparedSchema", "check_backend", "prepare_schema", "route"]


@dataclass(frozen=True)
class PreparedSchema:
    """A schema in canonical form, self-contained, and what it needs of a backend.

    schema: JSON value; the properties of an object stand in the order in which they are written out. features: see
    `features.py`. is_beyond: it has numbers that libraries take for others: we write those out.
    """

    schema: Any
    features: frozenset[str]
    is_beyond: bool = False


def prepare_schema(text: str) -> PreparedSchema:
    """Parse, bound and canonicalise a schema.

    Raises ConstraintError, with JSON path and keyword, where the text is no schema, exceeds a limit, refers outside of
    itself or to itself without a base, admits nothing, or says what the canonical form cannot say exactly.
    """
    parsed = parse_schema(text)
    try:
        root = read_schema(parsed)
        nodes = reachable(root)
        check_cycles(nodes)
        resolve_unevaluated(nodes)
        schema = canonical_schema(conjoined([Lit(root)]))
    except RecursionError:  # many choices at one place; everything else is bounded by the schema's depth
        raise ConstraintError("the schema has too many choices inside each other", path="$") from None
    if schema is False:
        raise ConstraintError("no value satisfies the schema", path="$")
    features = features_of(schema)
    return PreparedSchema(schema, features - {BEYOND}, BEYOND in features)


def route(prepared: PreparedSchema) -> str:
    """The backend that `auto` takes; ConstraintError where none honours the schema."""
    backend = route_features(prepared.features)
    check_backend(prepared, backend)
    return backend


def check_backend(prepared: PreparedSchema, backend: str) -> None:
    """ConstraintError naming keyword and path where the named backend does not honour the schema."""
    check_features(prepared.features, backend)
    if prepared.is_beyond and backend != "llguidance" and (place := first_beyond(prepared.schema)) is not None:
        path, keyword = place
        raise ConstraintError(
            f"{backend} does not take this number exactly (llguidance does)", path=path, keyword=keyword
        )
