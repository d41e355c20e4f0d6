"""The canonical form: what rewriting makes of schemas of every draft, written out; order of keys; features."""

from __future__ import annotations

import json
from typing import Any

import pytest

from decodex.grammar.errors import ConstraintError
from decodex.grammar.schema.prepare import prepare_schema, route

D4, D7 = "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#"
D20 = "https://json-schema.org/draft/2020-12/schema"
A, B = {"required": ["a"]}, {"required": ["b"]}


def canonical(schema: Any) -> Any:
    return prepare_schema(json.dumps(schema)).schema


def both(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, **keywords}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (True, True),
        ({}, True),
        ({"title": "t", "description": "d", "unknown": {"not": {}}}, True),
        ({"const": 1.0}, {"enum": [1]}),
        ({"enum": [1, 1.0, "a", True], "type": "integer"}, {"enum": [1]}),
        ({"enum": ["a", "ab", "b"], "pattern": "^a", "minLength": 2}, {"enum": ["ab"]}),
        ({"allOf": [{"enum": [1, 2, 3]}, {"not": {"enum": [2]}}]}, {"enum": [1, 3]}),
        ({"type": "string", "format": "color"}, {"type": "string"}),
        ({"type": "integer", "minimum": 0.5, "exclusiveMaximum": 4}, {"type": "integer", "minimum": 1, "maximum": 3}),
        ({"allOf": [{"minimum": 1}, {"type": "number"}, {"minimum": 2}]}, {"type": "number", "minimum": 2}),
        ({"type": "number", "multipleOf": 2}, {"type": "integer", "multipleOf": 2}),
        ({"type": "integer", "allOf": [{"multipleOf": 4}, {"multipleOf": 6}]}, {"type": "integer", "multipleOf": 12}),
        (
            {"type": "number", "multipleOf": 0.25},
            {"anyOf": [{"type": "number", "multipleOf": step} for step in (0.25, 0.5, 1)]},
        ),
        ({"type": "string", "maxLength": 0, "pattern": "^a?$"}, {"type": "string", "maxLength": 0}),
        ({"type": "string", "not": {"enum": [""]}}, {"type": "string", "minLength": 1}),
        ({"type": "string", "pattern": "a*"}, {"type": "string"}),
        ({"type": "string", "pattern": "a{2,5}"}, {"type": "string", "pattern": "^(?:(?s:.)*a{2}(?s:.)*)$"}),
        ({"type": ["string", "null"], "not": {"type": "null"}}, {"type": "string"}),
        ({"not": {"type": ["integer", "number"]}}, {"type": ["null", "boolean", "string", "array", "object"]}),
        ({"type": "object", "not": A}, {"type": "object", "properties": {"a": False}}),
        ({"type": "array", "not": {"minItems": 1}}, {"type": "array", "maxItems": 0, "items": False}),
        ({"type": "array", "items": False}, {"type": "array", "maxItems": 0, "items": False}),
        ({"type": "array", "uniqueItems": True, "items": {"enum": [1, 2]}}, {"enum": [[], [1], [2], [1, 2], [2, 1]]}),
        (
            {"type": "array", "contains": {"const": 1}, "maxItems": 1},
            {"type": "array", "minItems": 1, "maxItems": 1, "prefixItems": [{"enum": [1]}], "items": False},
        ),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, {"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        ({"oneOf": [{"type": "number"}, {"type": "integer", "minimum": 0}]}, None),
        (
            {"if": {"type": "string"}, "then": {"maxLength": 1}, "else": {"type": "null"}},
            {"anyOf": [{"type": "string", "maxLength": 1}, {"type": "null"}]},
        ),
        ({"$ref": "#/$defs/p", "minimum": 1, "$defs": {"p": {"type": "integer"}}}, {"type": "integer", "minimum": 1}),
        (
            {"$schema": D7, "$ref": "#/definitions/p", "minimum": 1, "definitions": {"p": {"type": "integer"}}},
            {"type": "integer"},
        ),
        ({"$schema": D4, "type": "integer", "minimum": 1, "exclusiveMinimum": True}, {"type": "integer", "minimum": 2}),
        (
            {"$schema": D4, "type": "array", "items": [{"type": "null"}], "additionalItems": False},
            {"type": "array", "maxItems": 1, "prefixItems": [{"type": "null"}], "items": False},
        ),
        ({"$schema": D4, "const": 1}, True),
        (
            {
                "$schema": D4,
                "id": "http://x/y",
                "items": {"$ref": "#d"},
                "definitions": {"d": {"id": "#d", "type": "null"}},
                "type": "array",
            },
            {"type": "array", "items": {"type": "null"}},
        ),
        (
            {"$schema": D20, "type": "array", "items": {"$ref": "e"}, "$defs": {"e": {"$id": "e", "type": "null"}}},
            {"type": "array", "items": {"type": "null"}},
        ),
        (
            {"type": "object", "propertyNames": {"enum": ["a"]}},
            {"type": "object", "properties": {"a": True}, "additionalProperties": False},
        ),
        (
            {
                "type": "object",
                "properties": {"a": {}},
                "allOf": [{"properties": {"b": {}}}],
                "unevaluatedProperties": False,
            },
            {"type": "object", "properties": {"a": True, "b": True}, "additionalProperties": False},
        ),
        (
            {"type": "object", "patternProperties": {"": {"type": "null"}}, "additionalProperties": False},
            {"type": "object", "additionalProperties": {"type": "null"}},
        ),
        (
            {"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": False, "maxProperties": 0},
            {"type": "object", "additionalProperties": False},
        ),
        (
            both(oneOf=[A, B]),
            {
                "anyOf": [
                    {"type": "object", "properties": {"a": {"type": "integer"}, "b": False}, "required": ["a"]},
                    {"type": "object", "properties": {"a": False, "b": True}, "required": ["b"]},
                ]
            },
        ),
        (
            both(dependencies={"a": ["b"]}),
            {
                "anyOf": [
                    {"type": "object", "properties": {"a": False, "b": True}},
                    {"type": "object", "properties": {"a": {"type": "integer"}, "b": True}, "required": ["a", "b"]},
                ]
            },
        ),
    ],
)
def test_canonical(schema: Any, expected: Any) -> None:
    if expected is None:
        with pytest.raises(ConstraintError):
            canonical(schema)
        return
    assert json.dumps(canonical(schema)) == json.dumps(expected)


def test_a_schema_that_refers_to_itself_keeps_its_loop() -> None:
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}, "required": ["kids"]}
    found = prepare_schema(json.dumps(tree))
    assert found.schema["$ref"] == "#/$defs/d0"
    assert found.schema["$defs"]["d0"]["properties"]["kids"]["items"] == {"$ref": "#/$defs/d0"}
    assert {"$ref", "$ref.recursive"} <= found.features
    assert route(found) == "llguidance"


def test_a_loop_with_siblings_is_merged_place_by_place() -> None:
    """llguidance refuses this one by itself: a circular reference with sibling keywords."""
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/n", "maxProperties": 1}}}
    found = canonical({"$ref": "#/$defs/n", "$defs": {"n": node}})
    assert found["properties"]["next"]["$ref"].startswith("#/$defs/")


def test_keys_stand_in_the_order_in_which_the_schema_names_them() -> None:
    schema = {
        "type": "object",
        "required": ["z"],
        "allOf": [{"properties": {"c": {}, "b": {}}}],
        "properties": {"b": {"type": "null"}, "a": {}},
        "dependentRequired": {"m": ["n"]},
    }
    for option in canonical(schema)["anyOf"]:
        assert list(option["properties"]) == ["c", "b", "a", "m", "n", "z"]


def test_what_is_never_reached_is_not_looked_at() -> None:
    assert canonical({"type": "null", "$defs": {"bad": {"minLength": 3, "pattern": "^a"}}}) == {"type": "null"}


def test_a_blocked_keyword_matters_only_where_its_type_is_possible() -> None:
    assert canonical({"type": "integer", "format": "hostname"}) == {"type": "integer"}


def test_shared_places_are_written_once() -> None:
    big = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(30)}}
    schema = {"properties": {f"q{i}": {"$ref": "#/$defs/big"} for i in range(30)}, "$defs": {"big": big}}
    assert json.dumps(canonical(schema)).count('"p7"') == 1
