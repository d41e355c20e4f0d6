"""Random schemas with keywords side by side, and instances near them, from a small world where they collide."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

__all__ = ["instances", "mutants", "schemas"]

NAMES = ["a", "b", "x1"]
PATTERNS = ["^a", "b$", "^[ab]+$", "1", "^.{1,2}$", "^x"]
NUMBERS = [0, 1, 2, -1, 3, 0.5, 1.5]
WORDS = ["", "a", "b", "ab", "ba", "aab", "x1", "1"]
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]

scalars = st.one_of(st.none(), st.booleans(), st.sampled_from(NUMBERS), st.sampled_from(WORDS))
instances: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from([*NAMES, "y"]), inner, max_size=3)
    ),
    max_leaves=5,
)


def _leaves() -> dict[str, st.SearchStrategy[Any]]:
    counts = st.integers(0, 3)
    return {
        "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True),
        "enum": st.lists(instances, min_size=1, max_size=3),
        "const": scalars,
        "minimum": st.sampled_from(NUMBERS),
        "maximum": st.sampled_from(NUMBERS),
        "exclusiveMinimum": st.sampled_from(NUMBERS),
        "exclusiveMaximum": st.sampled_from(NUMBERS),
        "multipleOf": st.sampled_from([1, 2, 3, 0.5, 1.5]),
        "minLength": counts,
        "maxLength": counts,
        "pattern": st.sampled_from(PATTERNS),
        "format": st.sampled_from(["date", "color"]),
        "minItems": counts,
        "maxItems": counts,
        "uniqueItems": st.booleans(),
        "required": st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
        "minProperties": counts,
        "maxProperties": counts,
        "dependentRequired": st.dictionaries(
            st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=2), max_size=1
        ),
    }


def _branches(inner: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    some = st.lists(inner, min_size=1, max_size=2)
    named = st.dictionaries(st.sampled_from(NAMES), inner, max_size=2)
    return {
        "properties": named,
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "^x", "1$"]), inner, max_size=1),
        "additionalProperties": inner,
        "propertyNames": inner,
        "unevaluatedProperties": inner,
        "prefixItems": some,
        "items": inner,
        "unevaluatedItems": inner,
        "contains": inner,
        "minContains": st.integers(0, 2),
        "maxContains": st.integers(0, 2),
        "allOf": some,
        "anyOf": some,
        "oneOf": some,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "dependentSchemas": st.dictionaries(st.sampled_from(NAMES), inner, max_size=1),
        "$ref": st.sampled_from(["#/$defs/p", "#/$defs/q"]),
    }


@st.composite
def _objects(draw: st.DrawFn, keywords: dict[str, st.SearchStrategy[Any]], low: int, high: int) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(sorted(keywords)), min_size=low, max_size=high, unique=True))
    return {name: draw(keywords[name]) for name in names}


_INNER: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.booleans(), _objects(_leaves(), 0, 2), _objects(_leaves(), 1, 3)),
    lambda inner: _objects({**_leaves(), **_branches(inner)}, 1, 4),
    max_leaves=4,
)


@st.composite
def schemas(draw: st.DrawFn) -> Any:
    """A schema of two or more keywords side by side, with two definitions."""
    schema = draw(_objects({**_leaves(), **_branches(_INNER)}, 2, 5))
    defs = {"p": draw(_INNER), "q": draw(_INNER)}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": defs}


def mutants(value: Any) -> list[Any]:
    """Values one step away."""
    near: list[Any] = [None, [], {}]
    if isinstance(value, dict):
        near += [{k: v for k, v in value.items() if k != name} for name in value]
        near += [{**value, name: 1} for name in (*NAMES, "y")]
        near += [{**value, name: other} for name, item in value.items() for other in mutants(item)[:4]]
    elif isinstance(value, list):
        near += [value[:-1], [*value, 1], [*value, *value[:1]], value[::-1]]
        near += [[*value[:i], other, *value[i + 1 :]] for i, item in enumerate(value) for other in mutants(item)[:3]]
    elif isinstance(value, str):
        near += [value + "a", value[1:], value + "b", value + "\n"]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        near += [value + 1, value - 1, value + 0.5, str(value)]
    return near
