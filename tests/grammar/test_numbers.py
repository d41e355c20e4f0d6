"""Numbers that no double holds, against exact arithmetic: in enums, as bounds, at any place of a schema."""

from __future__ import annotations

import json
import random
import re
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from toy_grammars import accepts, compiled

from decodex.grammar.errors import ConstraintError
from decodex.grammar.schema.numbers import is_beyond, is_bound, whole_regex
from decodex.grammar.schema.prepare import check_backend, prepare_schema

EDGES = [0, 1, 9, 10, 99, 2**53, 10**18, 2**63, 2**64, 10**19, 10**25, 10**40]
WHOLE = sorted({sign * (edge + near) for edge in EDGES for near in (-1, 0, 1, 2) for sign in (1, -1)})
BIG = 1112223334445556667


def random_whole(rng: random.Random) -> int:
    return rng.choice([rng.choice(WHOLE), rng.randrange(-(10**3), 10**3), rng.choice([1, -1]) * rng.getrandbits(70)])


def test_a_regex_of_whole_numbers() -> None:
    rng = random.Random(0)
    for _ in range(400):
        low, high = sorted((random_whole(rng), random_whole(rng)))
        span = (rng.choice([None, low]), rng.choice([None, high]))
        regex = re.compile(whole_regex(*span))
        near = [n + d for n in (low, high) for d in (-10, -1, 0, 1, 10)]
        for value in (*WHOLE, *near, rng.randint(low, high)):
            wanted = (span[0] is None or value >= span[0]) and (span[1] is None or value <= span[1])
            assert (regex.fullmatch(str(value)) is not None) == wanted, (span, value)
        assert not regex.fullmatch("00")
        assert not regex.fullmatch("-0")


@pytest.mark.parametrize("value", [v for v in WHOLE if abs(v) > 2**52] + [BIG, 2**63 - 1, -(2**63)])
def test_a_whole_constant_is_written_as_it_is(value: int) -> None:
    grammar = compiled("json", json.dumps({"const": value}))
    assert accepts(grammar, str(value))
    assert not any(accepts(grammar, str(value + near)) for near in (-257, -2, -1, 1, 2, 257))


@pytest.mark.parametrize(
    "digits",
    ["0.1", "123456789.12345679", "1e-7", "5e-324", "1e21", "1e23", "1.797e308", "2.5e-9", "0.30000000000000004"],
)
def test_a_constant_with_a_fraction_keeps_its_value(digits: str) -> None:
    grammar = compiled("json", f'{{"const": {digits}}}')
    value = Decimal(digits)
    text = str(int(value)) if value == value.to_integral_value() else json.dumps(float(digits))
    assert accepts(grammar, text)
    assert not accepts(grammar, text[:-1] + str((int(text[-1]) + 1) % 10))
    if "e-" in text and float(digits) > 1e-30:
        assert accepts(grammar, format(value, "f"))


SPANS: list[dict[str, Any]] = [
    {"minimum": 2**53 + 1},
    {"exclusiveMinimum": 2**53},
    {"maximum": 2**63 - 2},
    {"minimum": -(2**63), "maximum": 2**63 - 1},
    {"minimum": -(2**63) + 1},
    {"minimum": 0, "maximum": 2**64 - 1},
    {"minimum": 10**18},
    {"minimum": 10**19, "exclusiveMaximum": 10**21},
    {"minimum": 10**400},
    {"maximum": 1e23},
]


@pytest.mark.parametrize("span", SPANS, ids=str)
def test_bounds_of_whole_numbers_are_exact(span: dict[str, Any]) -> None:
    grammar = compiled("json", json.dumps({"type": "integer", **span}))
    exact = {key: int(Decimal(repr(value))) for key, value in span.items()}
    for value in (*WHOLE, *(v + near for v in exact.values() for near in (-1000, -1, 0, 1, 1000))):
        assert accepts(grammar, str(value)) == jsonschema.Draft202012Validator({"type": "integer", **exact}).is_valid(
            value
        )


PLACES: list[tuple[dict[str, Any], list[Any]]] = [
    (
        {
            "type": "object",
            "properties": {
                "id": {"enum": [BIG, 5, "x"]},
                "b": {"type": "string"},
                "c": {"type": ["null", "integer"], "minimum": 2**60 + 1},
            },
            "required": ["b"],
        },
        [
            {"id": BIG, "b": "ab"},
            {"id": 5, "b": "", "c": None},
            {"id": "x", "b": "é", "c": 2**60 + 1, "d": [1, {"e": 2}]},
            {"b": ""},
            {"id": BIG + 1, "b": ""},
            {"id": BIG},
            {"b": "", "c": 2**60},
            {"b": "", "id2": BIG + 1, "id3": 1},
        ],
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"const": BIG}, "b": {"const": [BIG, {"k": BIG, "l": 1e-9}, 1]}},
            "additionalProperties": False,
        },
        [
            {},
            {"a": BIG},
            {"b": [BIG, {"k": BIG, "l": 1e-9}, 1]},
            {"a": BIG, "b": [BIG, {"k": BIG, "l": 1e-9}, 1]},
            {"c": 1},
            {"b": [BIG, {"k": BIG, "l": 1e-8}, 1]},
            {"a": BIG - 1},
        ],
    ),
    (
        {"type": "array", "items": {"type": "integer", "minimum": 2**53 + 1}, "minItems": 1, "maxItems": 3},
        [[], [2**53 + 1], [2**53], [2**54, 2**70], [2**54] * 3, [2**54] * 4],
    ),
    (
        {
            "type": "array",
            "prefixItems": [{"type": "string"}, {"const": BIG}],
            "items": {"type": "boolean"},
            "minItems": 1,
        },
        [[], ["a"], ["a", BIG], ["a", BIG + 1], ["a", BIG, True], ["a", BIG, True, False], ["a", BIG, 1], [1]],
    ),
    ({"type": "array", "items": {"const": BIG}}, [[], [BIG], [BIG, BIG], [BIG, BIG - 1]]),
    ({"type": "array", "items": {"const": BIG}, "minItems": 2}, [[], [BIG], [BIG, BIG], [BIG] * 5]),
    (
        {
            "$defs": {
                "n": {
                    "type": "object",
                    "properties": {"v": {"const": BIG}, "next": {"$ref": "#/$defs/n"}},
                    "required": ["v"],
                }
            },
            "$ref": "#/$defs/n",
        },
        [{"v": BIG}, {"v": BIG, "next": {"v": BIG}}, {"v": BIG, "next": {"v": 1}}, {"next": {"v": BIG}}],
    ),
    (
        {
            "anyOf": [
                {"type": "string"},
                {"type": "integer", "minimum": 2**60 + 1},
                {"type": "number", "maximum": 2.5},
                {"type": "array"},
            ]
        },
        ["a", 2**60 + 1, 2**60, 2.5, 2.25, 2.75, 3, -(2**80), 1, [1, "a"], {}],
    ),
    ({"not": {"enum": [BIG]}, "type": "integer"}, [BIG, BIG + 1, BIG - 1, 0, -BIG]),
    (
        {"additionalProperties": {"const": BIG}, "type": "object", "properties": {"a": {"type": "string"}}},
        [{}, {"a": ""}, {"a": "", "b": BIG}, {"b": BIG, "c": BIG}, {"a": BIG}, {"b": 1}],
    ),
]


@pytest.mark.parametrize("whitespace", ["spaced", "compact", "flexible"])
@pytest.mark.parametrize(("schema", "values"), PLACES, ids=range(len(PLACES)))
def test_at_any_place(schema: dict[str, Any], values: list[Any], whitespace: str) -> None:
    grammar = compiled("json", json.dumps(schema), whitespace=whitespace)
    for value in values:
        separators = (",", ":") if whitespace == "compact" else (", ", ": ")
        text = json.dumps(value, ensure_ascii=False, separators=separators)
        assert accepts(grammar, text) == jsonschema.Draft202012Validator(schema).is_valid(value), value
        if whitespace == "flexible" and isinstance(value, (dict, list)):
            text = json.dumps(value, ensure_ascii=False, indent=3)
            assert accepts(grammar, text) == jsonschema.Draft202012Validator(schema).is_valid(value), value


def test_inside_a_tag() -> None:
    content = {"type": "json_schema", "json_schema": {"type": "object", "properties": {"id": {"const": BIG}}}}
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"}}
    grammar = compiled("structural_tag", json.dumps(tag))
    assert accepts(grammar, f'<a>{{"id": {BIG}}}</a>')
    assert not accepts(grammar, f'<a>{{"id": {BIG + 1}}}</a>')


@pytest.mark.parametrize(
    ("schema", "path", "keyword"),
    [
        ('{"properties": {"a": {"const": 0.1234567890123456789}}}', "$.properties.a", "const"),
        ('{"items": {"enum": [1, [0.1234567890123456789]]}}', "$.items", "enum"),
        ('{"anyOf": [{"const": 0.1234567890123456789}, {"const": 1}]}', "$", "anyOf"),
        ('{"type": "number", "maximum": 0.12345678901234567891}', "$", "maximum"),
        ('{"properties": {"a": {"type": "number", "minimum": 5e-324}}}', "$.properties.a", "minimum"),
        ('{"type": "number", "maximum": 1e308}', "$", "maximum"),
        ('{"type": "number", "exclusiveMaximum": 1e21}', "$", "exclusiveMaximum"),
        ('{"type": "number", "minimum": 9007199254740993}', "$", "minimum"),
        ('{"const": 1e-400}', "$", "const"),
        (f'{{"type": "integer", "minimum": {10**1000}}}', "$", "minimum"),
        (f'{{"type": "integer", "minimum": {2**53 + 1}, "multipleOf": 3}}', "$", "multipleOf"),
    ],
)
def test_what_is_not_exact_is_refused_with_its_place(schema: str, path: str, keyword: str) -> None:
    with pytest.raises(ConstraintError) as refusal:
        prepare_schema(schema)
    assert (refusal.value.path, refusal.value.keyword) == (path, keyword)


def test_a_named_backend_takes_what_it_takes_exactly() -> None:
    for backend in ("xgrammar", "outlines"):
        grammar = compiled("json", json.dumps({"const": BIG}), backend)
        assert accepts(grammar, str(BIG))
        assert not accepts(grammar, str(BIG + 1))
        for wide in ({"const": 2**64}, {"enum": ["a", [5e-324]]}):
            schema = json.dumps(
                {"type": "object", "properties": {"a": wide}, "required": ["a"], "additionalProperties": False}
            )
            with pytest.raises(ConstraintError) as refusal:
                check_backend(prepare_schema(schema), backend)
            assert refusal.value.keyword
    with pytest.raises(ConstraintError, match="supported") as refusal:
        compiled("json", json.dumps({"patternProperties": {"^a": {"const": BIG}}, "type": "object"}))
    assert refusal.value.keyword == "patternProperties"


def test_descriptions_may_be_as_precise_as_they_like() -> None:
    prepare_schema('{"type": "number", "default": 0.1234567890123456789, "maximum": 0.5}')
    assert is_bound(0.1)
    assert not is_bound(2**60 + 1)
    assert not is_beyond([1, {"a": 0.5}, True])
