"""Small schemas, one or two for each feature of the canonical form, with texts to judge.

Texts are labelled by parsing (a text that is not JSON, or repeats a key, is never a member) and by jsonschema.
"""

from __future__ import annotations

from typing import Any

__all__ = ["PROBES"]

NUMBERS = [
    "0",
    "1",
    "-1",
    "2",
    "3",
    "5",
    "10",
    "-10",
    "0.5",
    "-0.5",
    "1.5",
    "2.5",
    "0.25",
    "10.5",
    "7.25",
    "01",
    "+1",
    "1.",
    ".5",
]
STRINGS = [
    '""',
    '"a"',
    '"ab"',
    '"abc"',
    '"b"',
    '"aé"',
    '"\\n"',
    '"a1"',
    '"1"',
    '"aaaa"',
    "a",
    '"a',
    '"\\x"',
    '"😀"',
    '"😀😀"',
]
ARRAYS = ["[]", "[1]", "[1, 2]", "[1, 2, 3]", '["a"]', '["a", 1]', '["a", 1, true]', "[[]]", "[1,]", "[1 2]", "[true]"]
OBJECTS = ["{}", '{"a": 1}',
           '{"a": "x"}', '{"b": 1}', '{"b": "x"}', '{"a": 1, "b": 2}', '{"a": 1, "b": "x"}', '{"x": 1}',
           '{"x": "y"}', '{"a": 1, "x": 1}', '{"a": 1, "b": 2, "x": 1}', '{"a": 1, "x": "y"}', '{"\\u0061": "x"}',
           '{"a": 1, "\\u0061": "x"}', '{"xa": 1}', '{"xa": "s"}', '{"a": 1,}', '{"c": 1}', '{"c": null}',
           '{"x": 1, "y": 2}', '{"a": 1, "x": 1, "y": 2}']  # fmt: skip
MIXED = ["null", "true", "false", *NUMBERS[:6], *STRINGS[:4], *ARRAYS[:4], *OBJECTS[:4], "nul", "True"]
SPACE = (
    "\\x{9}-\\x{D}\\x{20}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}-\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
    "\\x{FEFF}"
)  # ECMA-262's \s
NO_SPACE = (
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}\\x{21}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}\\x{200B}-\\x{2027}"
    "\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{FEFE}\\x{FF00}-\\x{10FFFF}"
)
WORDS = f"^(?:(?:[{NO_SPACE}]+[{SPACE}]+){{0,99}}[{NO_SPACE}]+)$"
INT, STR = {"type": "integer"}, {"type": "string"}
A, AB = {"a": INT}, {"a": INT, "b": INT}


def _object(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", **keywords}


PROBES: dict[str, list[tuple[Any, list[str]]]] = {
    "anything": [(True, MIXED), (_object(properties={"a": True}, additionalProperties=False), OBJECTS)],
    "null": [({"type": "null"}, MIXED)],
    "boolean": [({"type": "boolean"}, MIXED)],
    "integer": [(INT, [*NUMBERS, "1e2", "1.0e1", "12345678901234567890", "-"])],
    "number": [({"type": "number"}, NUMBERS)],
    "string": [(STR, [*MIXED, *STRINGS, '"\\u0000"', '"\t"'])],
    "array": [({"type": "array"}, [*MIXED, *ARRAYS])],
    "object": [(_object(), [*MIXED, *OBJECTS[:12]])],
    "type.list": [({"type": ["string", "integer"]}, MIXED), ({"type": ["null", "object"], "properties": A}, OBJECTS)],
    "anyOf": [({"anyOf": [INT, {"type": "string", "maxLength": 1}]}, MIXED)],
    "anyOf.objects": [
        (
            {"anyOf": [_object(properties=A, required=["a"]), _object(properties={"b": STR}, required=["b"])]},
            OBJECTS[:8],
        )
    ],
    "$ref": [({"type": "array", "items": {"$ref": "#/$defs/d0"}, "$defs": {"d0": INT}}, ARRAYS)],
    "$ref.recursive": [
        (
            {"$ref": "#/$defs/d0", "$defs": {"d0": {"type": "array", "items": {"$ref": "#/$defs/d0"}}}},
            ["[]", "[[]]", "[1]"],
        )
    ],
    "enum.null": [({"enum": [None]}, MIXED)],
    "enum.boolean": [({"enum": [True]}, MIXED)],
    "enum.integer": [({"enum": [1, 10]}, NUMBERS)],
    "enum.number": [({"enum": [0.5]}, NUMBERS)],
    "enum.string": [({"enum": ["a", "aé", "\n", '"', "\\", "/"]}, [*STRINGS, '"\\""', '"\\\\"', '"/"'])],
    "enum.array": [({"enum": [[1, 2], []]}, ARRAYS)],
    "enum.object": [({"enum": [{"a": 1, "b": 2}]}, OBJECTS[:12])],
    "string.minLength": [({"type": "string", "minLength": 2}, STRINGS)],
    "string.maxLength": [({"type": "string", "maxLength": 1}, STRINGS)],
    "string.pattern": [
        ({"type": "string", "pattern": "^(?:a[a-z]*)$"}, STRINGS),
        ({"type": "string", "pattern": "^(?:(?s:.)*[0-9](?s:.)*)$"}, STRINGS),
    ],
    "string.pattern+length": [({"type": "string", "pattern": "^(?:a*)$", "minLength": 1, "maxLength": 3}, STRINGS)],
    "string.pattern+length.counted": [
        (
            {"type": "string", "pattern": WORDS, "minLength": 1, "maxLength": 5000},
            ['"a"', '"some words of a text"', '""'],
        )
    ],
    "string.patterns": [
        ({"type": "string", "pattern": "^(?:a(?s:.)*)$", "allOf": [{"pattern": "^(?:(?s:.)*b)$"}]}, STRINGS)
    ],
    "array.minItems": [({"type": "array", "minItems": 2}, ARRAYS)],
    "array.maxItems": [({"type": "array", "maxItems": 1}, ARRAYS)],
    "array.items": [({"type": "array", "items": INT}, ARRAYS), ({"type": "array", "items": False}, ARRAYS)],
    "array.prefixItems": [({"type": "array", "prefixItems": [STR, INT]}, ARRAYS)],
    "array.prefixItems+items": [({"type": "array", "prefixItems": [STR], "items": INT}, ARRAYS)],
    "array.prefixItems+minItems": [({"type": "array", "prefixItems": [STR, INT], "minItems": 2}, ARRAYS)],
    "array.prefixItems+maxItems": [({"type": "array", "prefixItems": [STR, INT], "maxItems": 2}, ARRAYS)],
    "object.properties": [(_object(properties=A, additionalProperties=False), OBJECTS)],
    "object.required": [(_object(properties=AB, required=["a", "b"], additionalProperties=False), OBJECTS)],
    "object.optional": [(_object(properties=AB, required=["b"], additionalProperties=False), OBJECTS)],
    "object.forbidden": [(_object(properties={"a": False}), OBJECTS)],
    "object.closed": [(_object(properties=AB, additionalProperties=False), OBJECTS)],
    "object.open": [(_object(properties=A), OBJECTS)],
    "object.other": [(_object(additionalProperties=INT), OBJECTS)],
    "object.properties+other": [(_object(properties=A, additionalProperties=STR), OBJECTS)],
    "object.patterns": [(_object(patternProperties={"^(?:x(?s:.)*)$": INT}, additionalProperties=False), OBJECTS)],
    "object.patterns.several": [
        (_object(patternProperties={"^(?:x)$": INT, "^(?:xa)$": STR}, additionalProperties=False), OBJECTS)
    ],
    "object.patterns+properties": [
        (_object(properties=A, patternProperties={"^(?:x(?s:.)*)$": INT}, additionalProperties=False), OBJECTS)
    ],
    "object.patterns+other": [(_object(patternProperties={"^(?:x(?s:.)*)$": INT}, additionalProperties=STR), OBJECTS)],
    "object.minProperties": [
        (_object(minProperties=1), OBJECTS),
        (_object(properties=A, required=["a"], minProperties=2), OBJECTS),
    ],
    "object.maxProperties": [
        (_object(maxProperties=1), OBJECTS),
        (_object(properties=A, required=["a"], maxProperties=2), OBJECTS),
    ],
}
for _kind in ("integer", "number"):
    for _key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        PROBES[f"{_kind}.{_key}"] = [({"type": _kind, _key: bound}, NUMBERS) for bound in (0, 2, -1)]
    PROBES[f"{_kind}.range"] = [({"type": _kind, "minimum": -1, "maximum": 5}, NUMBERS)]
    PROBES[f"{_kind}.multipleOf"] = [({"type": _kind, "multipleOf": 5}, NUMBERS)]
    PROBES[f"{_kind}.multipleOf+bounds"] = [({"type": _kind, "multipleOf": 5, "minimum": 1}, NUMBERS)]
PROBES["number.multipleOf"] = [
    ({"type": "number", "multipleOf": 0.5}, NUMBERS),
    ({"type": "number", "multipleOf": 0.1}, NUMBERS),
]
PROBES["number.minimum"].append(({"type": "number", "minimum": 0.5}, NUMBERS))
