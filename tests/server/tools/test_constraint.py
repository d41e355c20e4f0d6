"""What the structural tags of tool calls accept, in every format, with reasoning and without."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from properties.schemas import instances, schemas
from toy_grammars import accepts, compiled

from decodex.errors import RequestError
from decodex.server.reasoning import Markers, Reasoning
from decodex.server.tools.constraint import close_schema, output_tag
from decodex.server.tools.request import ToolRequest, read_function, read_tool_request
from decodex.server.tools.syntax import FORMATS, find_syntax
from decodex.structured_outputs import StructuredOutputsParams

SYNTAXES = {
    **FORMATS,
    "mistral_args": find_syntax("mistral", "[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}"),
    "mistral_spaced": find_syntax("mistral", "[TOOL_CALLS] ["),
}
WEATHER = {
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ADD = {
    "name": "math.add",
    "parameters": {"properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}, "required": ["x", "y"]},
}
CALLS = [("get_weather", '{"city": "Paris"}'), ("math.add", '{"x": 1, "y": -2}')]
CLOSED = {"additionalProperties": False}
THINK = Markers("<think>", "</think>")
ANSWER = StructuredOutputsParams(json={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
every_syntax = pytest.mark.parametrize("syntax", SYNTAXES.values(), ids=SYNTAXES)


def request(choice: Any = None, parallel: bool | None = True, tools=(WEATHER, ADD)) -> ToolRequest | None:
    read = [read_function(tool, f"tools[{i}].function") for i, tool in enumerate(tools)]
    return read_tool_request(read, choice, parallel)


def grammar(request, syntax, reasoning=None, constraint=None):
    return compiled("structural_tag", json.dumps(output_tag(request, syntax, reasoning, constraint)))


@every_syntax
def test_required_calls(syntax) -> None:
    tag = grammar(request("required"), syntax)
    for opening in syntax.openings:
        rest = syntax.write(CALLS)[len(syntax.openings[0]) :]
        assert accepts(tag, opening + rest)
    assert accepts(tag, syntax.write(CALLS[:1]))
    assert accepts(tag, syntax.write(CALLS * 3))
    for text in (
        "",
        "hello",
        f"x{syntax.write(CALLS)}",
        syntax.write([("other", "{}")]),
        syntax.write([("get_weather", "{}")]),
        syntax.write([("math.add", '{"x": 1, "y": "2"}')]),
        syntax.write([("get_weather", '{"city": "Paris", "more": 1}')]),
        syntax.write(CALLS)[:-1],
    ):
        assert not accepts(tag, text), text


@every_syntax
@pytest.mark.parametrize("choice", [{"type": "function", "function": {"name": "math.add"}}, "required"])
def test_one_call(syntax, choice) -> None:
    tag = grammar(request(choice, False), syntax)
    assert accepts(tag, syntax.write(CALLS[1:]))
    assert accepts(tag, syntax.write(CALLS[:1])) == (choice == "required")
    assert not accepts(tag, syntax.write(CALLS))
    assert not accepts(tag, syntax.write(CALLS[1:] * 2))


def test_llama_makes_one_call_unless_it_is_told_otherwise() -> None:
    syntax = FORMATS["llama3"]
    assert not accepts(grammar(request("required", None), syntax), syntax.write(CALLS))
    assert accepts(grammar(request("required", None), FORMATS["hermes"]), FORMATS["hermes"].write(CALLS))


@every_syntax
def test_auto_is_text_or_calls(syntax) -> None:
    tag = grammar(request(), syntax)
    for text in ("", "hello", "{", '{"a": 1}', '{"nam', "<tool", "[1, 2]\n", syntax.write(CALLS), "é\n<b>"):
        assert accepts(tag, text), text
    if syntax.trigger:
        assert accepts(tag, f"Let me see.\n{syntax.write(CALLS)}")
    for text in (
        syntax.write([("other", "{}")]),
        syntax.write([("get_weather", '{"city": 1}')]),
        syntax.write(CALLS)[:-1] if syntax.after_arguments or syntax.closing else syntax.write(CALLS)[:-2],
    ):
        assert not accepts(tag, text), text


@every_syntax
def test_auto_with_one_call_at_most(syntax) -> None:
    tag = grammar(request("auto", False), syntax)
    assert accepts(tag, "hello")
    assert accepts(tag, syntax.write(CALLS[:1]))
    assert not accepts(tag, syntax.write(CALLS))


@every_syntax
def test_calls_beside_a_schema(syntax) -> None:
    tag = grammar(request("auto", None), syntax, constraint=ANSWER)
    assert accepts(tag, syntax.write(CALLS)) != syntax.is_single
    assert accepts(tag, syntax.write(CALLS[:1]))
    assert accepts(tag, '{"a": 1}')
    assert not accepts(tag, "hello")
    assert not accepts(tag, '{"a": "b"}')


@every_syntax
@pytest.mark.parametrize("is_open", [True, False])
def test_reasoning_comes_first(syntax, is_open: bool) -> None:
    reasoning = Reasoning(THINK, is_open)
    start = "" if is_open else "<think>"
    thought = f"{start}\nI may write {syntax.trigger or syntax.before_name} here</think>"
    for choice in ("required", "auto"):
        tag = grammar(request(choice), syntax, reasoning)
        assert accepts(tag, f"{thought}\n\n{syntax.write(CALLS)}")
        assert accepts(tag, thought + syntax.write(CALLS))
        assert accepts(tag, f"{thought}\n\nhello") == (choice == "auto")
        assert not accepts(tag, f"{thought}\n\n{syntax.write([('other', '{}')])}")
        if not is_open:
            assert accepts(tag, syntax.write(CALLS))
            assert accepts(tag, "hello") == (choice == "auto")
    tag = grammar(None, syntax, reasoning, ANSWER)
    assert accepts(tag, f'{thought}\n\n{{"a": 1}}')
    assert not accepts(tag, f"{thought}\n\nhello")
    assert accepts(tag, '{"a": 1}') != is_open


@pytest.mark.parametrize(
    ("constraint", "member", "other"),
    [
        ({"json_object": True}, '{"x": [1]}', "[1]"),
        ({"regex": "[a-c]+|d"}, "abc", "abcd"),
        ({"choice": ["a - b", "(c)|", "é"]}, "(c)|", "(c)"),
        ({"grammar": 'root ::= "(" root ")" | "x"'}, "((x))", "((x)"),
    ],
)
def test_every_kind_after_reasoning(constraint, member: str, other: str) -> None:
    tag = grammar(None, FORMATS["json"], Reasoning(THINK, True), StructuredOutputsParams(**constraint))
    assert accepts(tag, f"so</think>\n\n{member}")
    assert not accepts(tag, f"so</think>\n\n{other}")


@every_syntax
def test_references_of_schemas_side_by_side(syntax) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}, "additionalProperties": False}
    tool = {"name": "f", "parameters": {**node, "$defs": {"n": node}}}
    answer = StructuredOutputsParams(json={"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}})
    tag = grammar(request("auto", False, [tool]), syntax, constraint=answer)
    assert accepts(tag, syntax.write([("f", '{"next": {"next": {}}}')]))
    assert accepts(tag, "12")
    assert not accepts(tag, syntax.write([("f", '{"next": 1}')]))


def test_refusals_name_the_field() -> None:
    with pytest.raises(RequestError, match=r"parallel_tool_calls: got True, expected false"):
        grammar(request("auto", True), FORMATS["llama3"], constraint=ANSWER)
    compact = StructuredOutputsParams(json=ANSWER.json, whitespace="compact")
    with pytest.raises(RequestError, match=r"structured_outputs\.whitespace: got 'compact', expected spaced"):
        grammar(request("auto"), FORMATS["json"], constraint=compact)
    with pytest.raises(RequestError, match=r"structured_outputs\.backend: got 'xgrammar'"):
        grammar(request(), FORMATS["json"], constraint=StructuredOutputsParams(regex="a", backend="xgrammar"))
    tag = StructuredOutputsParams(structural_tag={"format": {"type": "any_text"}})
    with pytest.raises(RequestError, match=r"structured_outputs\.structural_tag"):
        grammar(request(), FORMATS["json"], constraint=tag)
    wrong = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "dict"}}}}
    with pytest.raises(RequestError, match=r"tools\[0\]\.function\.parameters.*\$\.properties\.a\.type: 'dict' is not"):
        output_tag(request("required", tools=[wrong]), FORMATS["json"], None, None)


def test_a_strict_schema_is_honoured_or_refused() -> None:
    hostname = {"type": "object", "properties": {"a": {"type": "string", "format": "hostname"}}, "required": ["a"]}
    strict = {"name": "f", "parameters": hostname, "strict": True}
    with pytest.raises(RequestError, match=r"tools\[0\]\.function\.parameters.*hostname"):
        output_tag(request("required", tools=[strict]), FORMATS["json"], None, None)
    tag = grammar(request("required", tools=[{**strict, "strict": False}]), FORMATS["json"])
    assert accepts(tag, FORMATS["json"].write([("f", '{"b": 1}')]))


def test_functions_without_parameters() -> None:
    tag = grammar(request("required", tools=[{"name": "now"}]), FORMATS["hermes"])
    assert accepts(tag, FORMATS["hermes"].write([("now", "{}")]))
    assert not accepts(tag, FORMATS["hermes"].write([("now", '{"a": 1}')]))


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        (
            {"properties": {"a": {"properties": {}}}},
            {"properties": {"a": {"properties": {}, "additionalProperties": 0}}},
        ),
        ({"properties": {"a": {}}, "required": ["b"]}, None),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, None),
        ({"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}]}, None),
        ({"allOf": [{"properties": {"b": {}}}]}, None),
        ({"type": "object"}, None),
        ({"items": {"properties": {}}}, {"items": {"properties": {}, **CLOSED}}),
    ],
)
def test_closed_schemas(schema, closed) -> None:
    if closed is not None and "properties" in closed:
        closed = {**closed, **CLOSED}
    assert close_schema(schema) == (schema if closed is None else closed)


@settings(max_examples=50)
@given(schemas(), st.lists(instances, max_size=10))
def test_closing_only_takes_away(schema, values) -> None:
    """Whatever satisfies the closed schema satisfies the schema."""
    judge, closed = jsonschema.Draft202012Validator(schema), jsonschema.Draft202012Validator(close_schema(schema))
    for value in values:
        try:
            assert judge.is_valid(value) or not closed.is_valid(value)
        except RecursionError:  # a reference without an end
            return
