"""Structural tags: free text, constrained parts, special tokens as markers, and faults with their path."""

from __future__ import annotations

import json
from typing import Any

import pytest
from toy_grammars import VOCABULARY, compiled, mask_of

from decodex.grammar.errors import ConstraintError

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
CALLS = {
    "structures": [
        {"begin": "<f=foo>", "schema": SCHEMA, "end": "</f>"},
        {"begin": "<f=bar>", "schema": {"type": "integer"}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}
TOOL = {"structures": [{"begin": "<tool>", "schema": SCHEMA, "end": "<end>"}], "triggers": ["<tool>"]}
NESTED = 'root ::= "(" root ")" | "x"'
SPECIAL = {text: VOCABULARY.tokens.index(text.encode()) for text in ("<tool>", "<end>", "<eos>")}


def triggered(**options: Any) -> dict[str, Any]:
    return {
        "type": "structural_tag",
        "format": {
            "type": "triggered_tags",
            "triggers": ["<"],
            "tags": [
                {"begin": "<a>", "content": {"type": "regex", "pattern": ".*"}, "end": "</a>"},
                {"begin": "<b>", "content": {"type": "grammar", "grammar": NESTED}, "end": "</b>"},
            ],
            **options,
        },
    }


def one_tag(**fields: Any) -> dict[str, Any]:
    return {"structures": [{"begin": "x", "schema": {}, "end": "", **fields}], "triggers": ["x"]}


def elements(kind: str, *items: dict[str, Any]) -> dict[str, Any]:
    return {"format": {"type": kind, "elements": list(items)}}


THINK = elements(
    "sequence",
    {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"},
    {
        "type": "or",
        "elements": [{"type": "json_schema", "json_schema": SCHEMA}, {"type": "const_string", "value": "no é😀"}],
    },
)
LIST = {
    "format": {
        "type": "tags_with_separator",
        "separator": ", ",
        "tags": [{"begin": "a", "content": {"type": "regex", "pattern": "[0-9]"}, "end": "b"}],
    }
}


def is_member(tag: dict[str, Any], text: str, special: bool = True) -> bool:
    """Byte by byte; special tokens spelt in the text are those tokens, unless `special` is False."""
    matcher = compiled("structural_tag", json.dumps(tag)).matcher()
    first = VOCABULARY.tokens.index(b"\0")
    while text:
        name = next((name for name in SPECIAL if special and text.startswith(name)), None)
        ids = [SPECIAL[name]] if name else [first + byte for byte in text[0].encode()]
        if not all(matcher.accept(token) for token in ids):
            return False
        text = text[len(name or text[0]) :]
    return matcher.is_accepting


@pytest.mark.parametrize(
    ("tag", "good", "bad"),
    [
        (
            CALLS,
            ["", "hello", 'a <f=foo>{"a": 1}</f> b', "<f=bar>1</f><f=bar>-2</f>", "<f<f=bar>1</f>", "<f", 'x{"a":1}'],
            ['<f=foo>{"a":1}</f>', "<f=baz", "<f=", "<f=bar>1", "<f=bar>x</f>", "<tool>", "a<eos>"],
        ),
        (
            TOOL,
            ["x", 'x<tool>{"a": 1}<end>y', '<tool>{"a": 1}<end><tool>{"a": 2}<end>'],
            ["<end>", "<tool>", "<tool><tool>", '<tool>{"a": 1}', '<tool>{"a": 1}x', '<tool>{"b": 1}<end>'],
        ),
        (triggered(), ["", "hi <a>x</a> yo <b>((x))</b>"], ["<a>x<b>", "<b>((x)</b>", "<c>", "<"]),
        (triggered(at_least_one=True), ["hi<a></a>", "<a></a>x"], ["hi", ""]),
        (triggered(stop_after_first=True), ["hi", "hi<a>x</a>"], ["<a></a>x"]),
        (triggered(stop_after_first=True, at_least_one=True), ["hi<a>x</a>"], ["", "hi", "<a></a>x"]),
        (THINK, ["<think>so</think>no é😀", '<think></think>{"a": 1}'], ["no é😀", "<think>", "<think></think>"]),
        (LIST, ["", "a1b", "a1b, a2b"], ["a", "a1b, ", "a1b,a2b", "xa1b"]),
    ],
)
def test_language(tag: dict[str, Any], good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not is_member(tag, text)] == []
    assert [text for text in bad if is_member(tag, text)] == []


def test_special_tokens_are_legal_where_they_are_named_only() -> None:
    matcher = compiled("structural_tag", json.dumps(TOOL)).matcher()
    tool, end = SPECIAL["<tool>"], SPECIAL["<end>"]
    legal = mask_of(matcher)
    assert tool in legal
    assert end not in legal
    assert legal >= VOCABULARY.eos_token_ids
    assert matcher.accept(tool)
    assert not mask_of(matcher) & (VOCABULARY.special_ids)
    assert matcher.forced_text() == b'{"a": '
    plain = compiled("structural_tag", json.dumps(CALLS)).matcher()
    assert not mask_of(plain) & (VOCABULARY.special_ids - VOCABULARY.eos_token_ids)


def test_free_text_never_ends_by_itself() -> None:
    matcher = compiled("structural_tag", json.dumps(CALLS)).matcher()
    assert matcher.is_accepting
    assert not matcher.is_terminated


@pytest.mark.parametrize(
    ("tag", "path", "reason"),
    [
        ([], r"\$", "JSON object"),
        ({}, r"\$", "'structures' is missing"),
        ({"type": "function", "structures": [], "triggers": []}, r"\$.type", "structural_tag"),
        ({"structures": [], "triggers": ["x"]}, r"\$.structures", "at least one"),
        ({**CALLS, "triggers": ["<g="]}, r"\$.triggers\[0\]", "no tag begins"),
        ({**CALLS, "triggers": ["<f=foo>"]}, r"\$", "starts with no trigger"),
        ({**CALLS, "triggers": ["<f=", "f="]}, r"\$.triggers\[0\]", "holds another trigger"),
        ({**CALLS, "strict": True}, r"\$", "unknown key 'strict'"),
        (one_tag(schema={"type": 1}), r"\[0\].schema", "type"),
        (one_tag(begin=1), r"\[0\].begin", "expected text"),
        ({"format": {"type": "regex", "pattern": "("}}, r"\$.format.pattern", "missing \\)"),
        ({"format": {"type": "grammar", "grammar": "root ::= x"}}, r"\$.format.grammar", "not defined"),
        ({"format": {"type": "qwen_xml"}}, r"\$.format", "'qwen_xml' is not supported"),
        (elements("or", {"type": "const_string"}), r"elements\[0\]", "'value' is missing"),
        (elements("sequence", {"type": "any_text"}, {"type": "any_text"}), "", "marker after it"),
        (triggered(at_least_one=1), "at_least_one", "true or false"),
    ],
)
def test_faults(tag: Any, path: str, reason: str) -> None:
    with pytest.raises(ConstraintError, match=f"{path}.*{reason}"):
        compiled("structural_tag", json.dumps(tag))


def test_markers_that_cannot_be() -> None:
    ends = {"structures": [{"begin": "<eos>", "schema": {}, "end": ""}], "triggers": ["<eos>"]}
    with pytest.raises(ConstraintError, match="ends the output"):
        compiled("structural_tag", json.dumps(ends))
    mixed = {"structures": [{"begin": "x<tool>", "schema": {}, "end": ""}], "triggers": ["x<tool>"]}
    with pytest.raises(ConstraintError, match="mixes text and special"):
        compiled("structural_tag", json.dumps(mixed))
