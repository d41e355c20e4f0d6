"""Bad schemas: refused at once, with the place and the keyword."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from decodex.grammar.errors import ConstraintError
from decodex.grammar.schema import text
from decodex.grammar.schema.prepare import check_backend, prepare_schema, route


def nested(depth: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


LOOP = {
    "$ref": "#/$defs/a",
    "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}},
}
ENDLESS = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
MANY = {"anyOf": [{"properties": {f"p{i}": {"type": "integer"}}, "required": [f"p{i}"]} for i in range(12)]}

BAD: list[tuple[str, str, str, str]] = [
    # schema, path, keyword, what the reason says
    ("{", "$", "", "not JSON"),
    ("[]", "$", "", "object or a boolean"),
    ('"string"', "$", "", "object or a boolean"),
    ('{"a": NaN}', "$", "", "not JSON"),
    ('{"minimum": 1e999}', "$", "", "out of range"),
    ('{"type": "object", "type": "array"}', "", "type", "twice"),
    ('{"const": "\ud800"}', "$", "", "not JSON"),
    ("false", "$", "", "no value satisfies"),
    ('{"enum": []}', "$", "enum", "not empty"),
    ('{"properties": {"a": {"enum": []}}}', "$.properties.a", "enum", "not empty"),
    ('{"type": "string", "enum": [1]}', "$", "", "no value satisfies"),
    ('{"type": "integer", "minimum": 2, "maximum": 1}', "$", "", "no value satisfies"),
    ('{"allOf": [{"type": "string"}, {"type": "integer"}]}', "$", "", "no value satisfies"),
    ('{"type": "object", "properties": {"a": false}, "required": ["a"]}', "$", "", "no value satisfies"),
    ('{"type": "array", "items": false, "minItems": 1}', "$", "", "no value satisfies"),
    (json.dumps(ENDLESS), "$", "", "no value satisfies"),
    ('{"not": {}}', "$", "", "no value satisfies"),
    ('{"oneOf": [{"type": "string"}, {"type": "string"}]}', "$", "", "no value satisfies"),
    ('{"$ref": "#"}', "$", "$ref", "no base"),
    (json.dumps(LOOP), "$.$defs.a", "$ref", "no base"),
    ('{"items": {"$ref": "http://example.com/other.json"}}', "$.items", "$ref", "outside"),
    ('{"$ref": "other.json#/a"}', "$", "$ref", "outside"),
    ('{"$ref": "#/$defs/none"}', "$", "$ref", "nothing"),
    ('{"$ref": "#none"}', "$", "$ref", "anchor"),
    ('{"$dynamicRef": "#a", "$dynamicAnchor": "a"}', "$", "$dynamicRef", "not supported"),
    ('{"properties": {"a": {"pattern": "("}}}', "$.properties.a", "pattern", "refused"),
    ('{"patternProperties": {"[": {}}}', "$", "patternProperties", "refused"),
    ('{"properties": {"a": {"pattern": "(a+)+$"}}}', "$.properties.a", "pattern", "catastrophic"),
    ('{"properties": {"a": {"pattern": "((a{1,999}){1,999}){1,999}"}}}', "$.properties.a", "pattern", "unroll"),
    ('{"type": "strin"}', "$", "type", "seven"),
    ('{"properties": {"a": {"type": 3}}}', "$.properties.a", "type", "seven"),
    ('{"properties": []}', "$", "properties", "object"),
    ('{"required": "a"}', "$", "required", "strings"),
    ('{"minLength": -1}', "$", "minLength", "whole number"),
    ('{"minLength": 1.5}', "$", "minLength", "whole number"),
    ('{"multipleOf": 0}', "$", "multipleOf", "above zero"),
    ('{"allOf": []}', "$", "allOf", "not empty"),
    ('{"properties": {"a": 1}}', "$.properties.a", "", "object or a boolean"),
    ('{"$schema": "http://example.com/mine"}', "$", "$schema", "not known"),
    ('{"type": "string", "format": "hostname"}', "$", "format", "not supported"),
    ('{"type": "string", "not": {"pattern": "a"}}', "$.not", "not", "not supported"),
    (
        '{"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 3}]}',
        "$.oneOf[1]",
        "oneOf",
        "not supported",
    ),
    ('{"if": {"type": "string", "pattern": "a"}, "else": {"type": "string"}}', "$.if", "if", "not supported"),
    ('{"type": "array", "uniqueItems": true}', "$", "uniqueItems", "not supported"),
    ('{"type": "array", "contains": {"type": "integer"}}', "$", "contains", "not supported"),
    ('{"type": "object", "minProperties": 2}', "$", "minProperties", "repeat"),
    ('{"enum": ["\\u0001"]}', "$", "enum", "control"),
    ('{"multipleOf": 0.0123456789}', "$", "multipleOf", "digits"),
    (json.dumps(nested(text.MAX_DEPTH + 2)), "", "", "nested deeper"),
    ("[" * 100_000, "$", "", "nested deeper"),
    ('{"a":' * 50_000, "$", "", "nested deeper"),
    (json.dumps({"enum": list(range(text.MAX_ENUM + 1))}), "$", "enum", "limit"),
    (json.dumps({"description": "x" * text.MAX_BYTES}), "$", "", "bytes"),
    (json.dumps({"default": [0] * text.MAX_NODES}), "$.default", "", "values"),
    ('{"type": "array", "maxItems": 1000000}', "$", "maxItems", "limit"),
    ('{"type": "string", "minLength": 100000000}', "$", "minLength", "limit"),
    (json.dumps({"allOf": [MANY, MANY, MANY]}), "", "anyOf", "multiplies out"),
    (
        json.dumps({"dependentRequired": {f"p{i}": ["q"] for i in range(1500)}}),
        "",
        "",
        "multiplies out|inside each other",
    ),
    (json.dumps({"type": "string", "not": {"const": "x" * 5000}}), "$", "not", "longer"),
]


@pytest.mark.parametrize(("schema", "path", "keyword", "reason"), BAD, ids=[f"{i}-{b[3]}" for i, b in enumerate(BAD)])
def test_a_bad_schema_is_refused_at_once(schema: str, path: str, keyword: str, reason: str) -> None:
    start = time.perf_counter()
    with pytest.raises(ConstraintError, match=reason) as refusal:
        prepare_schema(schema)
    assert time.perf_counter() - start < 4
    if path:
        assert refusal.value.path == path
    if keyword:
        assert refusal.value.keyword == keyword


def test_a_backend_that_does_not_honour_a_feature_is_refused_by_name() -> None:
    prepared = prepare_schema('{"type": "number", "multipleOf": 0.5}')
    assert route(prepared) == "llguidance"
    check_backend(prepared, "llguidance")
    for backend in ("xgrammar", "outlines"):
        with pytest.raises(ConstraintError, match=f"{backend} does not honour") as refusal:
            check_backend(prepared, backend)
        assert refusal.value.keyword
    with pytest.raises(ConstraintError, match="not known"):
        check_backend(prepared, "other")
