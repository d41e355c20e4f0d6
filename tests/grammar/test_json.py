"""JSON schemas through the whole room: the one JSON form, masks against every member, whitespace, the bare object."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from toy_grammars import VOCABULARY, accepts, check_finite, compiled

from decodex.grammar.backends.compile import compile_here
from decodex.grammar.constraint import Constraint
from decodex.grammar.errors import ConstraintError
from decodex.grammar.forms import Json
from decodex.grammar.matcher import CompiledGrammar
from decodex.grammar.plan import Plan

SEPARATORS = {"spaced": (", ", ": "), "compact": (",", ":")}
VALUES: list[Any] = [None, True, False, 0, 1, -1, 10, 1.5, "", "a", "ab", "é", 'a"b', "a\nb", "\x01", [], [0], {}]
VALUES += [dict(zip("ab", pair)) for pair in itertools.product([None, 0, "a", [], {}], repeat=2)]
VALUES += [{"a": 1}, {"b": 2, "c": 3}, {"a": {"a": 1}}, {"a": [0, 1]}]
SCHEMAS: list[dict[str, Any]] = [
    {"enum": ["aaaa", "aa", "ab", 0, 10, None, True, ["a"], {"a": "é"}]},
    {"const": 'a"\\\n\x01é'},
    {"type": "integer", "minimum": -1, "maximum": 10},
    {"type": "string", "maxLength": 2},
    {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
    {"type": "object", "properties": {"a": {"type": ["null", "integer"]}, "b": {}}, "required": ["a"]},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": "^a"}]},
]


def library(backend: str, schema: Any, whitespace: str = "spaced") -> CompiledGrammar:
    """One library whatever the routing says."""
    return compile_here(Plan(Constraint("json", ""), backend, Json(schema, whitespace)), VOCABULARY)


def spelt(value: Any, whitespace: str) -> str:
    return json.dumps(value, ensure_ascii=False, separators=SEPARATORS[whitespace])


@pytest.mark.parametrize("whitespace", sorted(SEPARATORS))
@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_llguidance_accepts_what_jsonschema_does(schema: dict[str, Any], whitespace: str) -> None:
    grammar = library("llguidance", schema, whitespace)
    for value in VALUES:
        is_valid = jsonschema.Draft202012Validator(schema).is_valid(value)
        text = spelt(value, whitespace)
        assert accepts(grammar, text) == (is_valid and r"\u" not in text), value
        other = spelt(value, "compact" if whitespace == "spaced" else "spaced")
        assert not accepts(grammar, other) or other == spelt(value, whitespace), value


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar", "outlines"])
def test_masks_equal_the_members(backend: str) -> None:
    """Also where a text is forced: any spelling of it by tokens is legal."""
    for members in (["aaaa"], ["aaaa", "aa", "abc"], ["true", 'a"']):
        grammar = library(backend, {"enum": members})
        check_finite(grammar, [spelt(m, "spaced").encode() for m in members], random.Random(0), walks=6)
    schema = {
        "type": "object",
        "properties": {"aa": {"enum": ["a", "b"]}, "ab": {"type": "boolean"}},
        "required": ["aa", "ab"],
        "additionalProperties": False,
    }
    members = [spelt({"aa": a, "ab": b}, "spaced").encode() for a in "ab" for b in (True, False)]
    check_finite(library(backend, schema), members, random.Random(1), walks=6)


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar", "outlines"])
def test_the_one_json_form(backend: str) -> None:
    strings = library(backend, {"type": "string"})
    for text in ['"a"', '""', r'"\""', r'"\\"', r'"\n\t\r\b\f"', '"é"', '"😀"', '"/"']:
        assert accepts(strings, text), text
    escaped = [r'"\/"', r'"\u0001"', r'"\u0041"', r'"\u00e9"', r'"\ud83d\ude00"', r'"\x"']
    for text in [*escaped, '"\n"', '"\x01"', '"', '"a" ', ' "a"']:
        assert not accepts(strings, text), text
    names = library(backend, {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True})
    assert accepts(names, '{"a": 1}')
    assert not accepts(names, r'{"\u0061": "x"}')  # the same name, spelled to slip past its schema
    numbers = library(backend, {"type": "integer"})
    assert all(accepts(numbers, text) for text in ("12", "-3", "0"))
    assert not any(accepts(numbers, text) for text in ("1.0", "1e3", "01", "+1", ""))


def test_flexible_whitespace_is_bounded() -> None:
    for backend in ("llguidance", "xgrammar"):
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        grammar = library(backend, schema, "flexible")
        assert accepts(grammar, '{\n  "a" : 1 \t}')
        assert accepts(grammar, '{"a":1}')
        assert accepts(grammar, "{" + " " * 40 + '"a":1}')
        assert not accepts(grammar, "{" + " " * 41 + '"a":1}')


def test_json_object() -> None:
    grammar = compiled("json_object", "")
    for text in ("{}", '{"a": [1, {"b": null}], "c": "x"}'):
        assert accepts(grammar, text)
    for text in ("[]", "1", '{"a":1}', '{"a": 1', '{"a": 01}', "{'a': 1}", "{} "):
        assert not accepts(grammar, text)


def test_a_finished_object_is_terminated() -> None:
    for backend in ("llguidance", "xgrammar"):
        matcher = library(backend, {"type": "object"}).matcher()
        assert all(matcher.accept(token) for token in VOCABULARY.encode("{}"))
        assert matcher.is_terminated
        assert not matcher.accept(VOCABULARY.tokens.index(b" "))


def test_objects_with_very_many_properties() -> None:
    names = [f"p{i}" for i in range(700)]
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    for other in (True, False):
        grammar = compiled("json", json.dumps({**schema, "additionalProperties": other}))
        for chosen in ([], names[:1], names[-1:], [names[5], names[600]]):
            value = dict.fromkeys(chosen, 1)
            text = spelt(value, "spaced")
            matcher = grammar.matcher()
            for byte in text.encode():
                matcher.fill(np.zeros(VOCABULARY.num_words, dtype=np.int32))
                assert matcher.accept(VOCABULARY.tokens.index(bytes([byte])))
            assert matcher.is_accepting
        assert not accepts(grammar, '{"p600": 1, "p5": 1}')
    many = {"items": {"properties": {f"p{i}": {} for i in range(2001)}}}
    with pytest.raises(ConstraintError, match="2,001 optional") as refusal:
        compiled("json", json.dumps(many))
    assert (refusal.value.path, refusal.value.keyword) == ("$.items", "properties")


def test_a_refusal_of_the_library_is_short_and_has_a_place() -> None:
    date = {"type": "string", "format": "date", "maxLength": 5}
    with pytest.raises(ConstraintError, match="no text has this pattern or format and this length") as refusal:
        compiled("json", json.dumps(date))
    assert (refusal.value.path, refusal.value.keyword) == ("$", "pattern")
    with pytest.raises(ConstraintError, match="no value satisfies the schema: required property 'd'") as refusal:
        compiled("json", json.dumps({"properties": {"d": date}, "required": ["d"], "type": "object"}))
    assert refusal.value.path == "$"
