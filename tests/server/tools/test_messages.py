"""Conversations with tools, as templates of several kinds take them."""

from __future__ import annotations

import json

import pytest

from decodex.errors import RequestError
from decodex.server.tools.messages import messages_for_template, tools_for_template
from decodex.server.tools.request import read_function, read_tool_request
from decodex.server.tools.syntax import FORMATS

NONE = frozenset({"messages"})
SHOWN = frozenset({"messages", "tools"})
PLAIN = "{% for message in messages %}{{ message['role'] + message['content'] }}{% endfor %}"
FULL = "{% if tools %}{% endif %}{{ message.tool_calls }}{% if message.role == 'tool' %}{% endif %}"
ADD = {
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
}


def request(choice="auto"):
    return read_tool_request([read_function(ADD, "tools[0].function")], choice, None)


def call(index: int, arguments: object = '{"x": 1}') -> dict:
    return {"id": f"call_{index}", "type": "function", "function": {"name": "add", "arguments": arguments}}


def conversation(*calls: dict) -> list[dict]:
    results = [{"role": "tool", "tool_call_id": one["id"], "content": str(i)} for i, one in enumerate(calls)]
    asked = {"role": "assistant", "content": None, "tool_calls": list(calls)}
    return [{"role": "user", "content": "1 + 1?"}, asked, *results]


def test_a_template_with_tools_gets_them_as_they_are() -> None:
    function = {"name": "add", "description": "Adds.", "parameters": ADD["parameters"]}
    assert tools_for_template(request(), SHOWN) == [{"type": "function", "function": function}]
    assert tools_for_template(request("none"), SHOWN) is None
    assert tools_for_template(None, SHOWN) is None
    user, asked, result = messages_for_template(conversation(call(0)), request(), FORMATS["hermes"], FULL, SHOWN)
    assert user == {"role": "user", "content": "1 + 1?"}
    assert asked["content"] == ""
    assert asked["tool_calls"][0]["function"] == {"name": "add", "arguments": {"x": 1}}
    assert result == {"role": "tool", "tool_call_id": "call_0", "content": "0", "name": "add"}


def test_a_template_without_tools_gets_text() -> None:
    syntax = FORMATS["json"]
    assert tools_for_template(request(), NONE) is None
    found = messages_for_template(conversation(call(0), call(1)), request(), syntax, PLAIN, NONE)
    system, user, asked, results = found
    assert system["role"] == "system"
    assert json.dumps(ADD) in system["content"]
    assert '{"tool_calls": [{"name": "NAME", "arguments": ARGUMENTS}]}' in system["content"]
    assert user["role"] == "user"
    assert asked == {"role": "assistant", "content": syntax.write([("add", '{"x": 1}')] * 2)}
    assert results == {"role": "user", "content": "Result of add: 0\nResult of add: 1"}


def test_instructions_follow_a_system_message() -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    [system, _] = messages_for_template(chat, request(), FORMATS["json"], PLAIN, NONE)
    assert system["content"].startswith("Be brief.\n\nYou can call")
    assert messages_for_template(chat, request("none"), FORMATS["json"], PLAIN, NONE) == chat


def test_single_calls_for_templates_that_want_them() -> None:
    chat = conversation(call(0), call(1))
    chat[2:] = [chat[3], chat[2]]
    found = messages_for_template(chat, request(), FORMATS["llama3"], FULL, SHOWN)
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "assistant", "tool"]
    assert [message.get("tool_call_id") for message in found] == [None, None, "call_0", None, "call_1"]
    assert [len(message["tool_calls"]) for message in found if "tool_calls" in message] == [1, 1]


def test_ids_that_a_template_refuses_are_replaced_by_fitting_ones() -> None:
    _, asked, result = messages_for_template(conversation(call(0)), request(), FORMATS["mistral"], FULL, SHOWN)
    assert len(result["tool_call_id"]) == 9
    assert asked["tool_calls"][0]["id"] == result["tool_call_id"]


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([{"role": "tool", "content": "1"}], r"messages\[0\]\.tool_call_id"),
        ([{"role": "user", "content": "x", "tool_calls": [call(0)]}], r"messages\[0\]\.tool_calls"),
        ([{"role": "assistant", "tool_calls": []}], r"messages\[0\]\.tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"id": 1}]}], r"messages\[0\]\.tool_calls\[0\]\.id"),
        ([{"role": "assistant", "tool_calls": [{"id": "1"}]}], r"messages\[0\]\.tool_calls\[0\]\.function"),
        (
            [{"role": "assistant", "tool_calls": [call(0, "[1]")]}],
            r"messages\[0\]\.tool_calls\[0\]\.function\.arguments",
        ),
        ([{"role": "assistant", "tool_calls": [call(0, "{")]}], r"messages\[0\]\.tool_calls\[0\]\.function\.arguments"),
        ([{"role": "assistant", "tool_calls": [{"type": "custom"}]}], r"messages\[0\]\.tool_calls\[0\]"),
    ],
)
def test_faults_name_their_place(messages, field: str) -> None:
    with pytest.raises(RequestError, match=f"^{field}: "):
        messages_for_template(messages, None, FORMATS["json"], FULL, SHOWN)
