"""tools, tool_choice and parallel_tool_calls: what they come to, and faults by name."""

from __future__ import annotations

import pytest

from decodex.errors import RequestError
from decodex.server.tools.request import read_function, read_tool_request

TOOLS = [read_function({"name": name}, f"tools[{i}].function") for i, name in enumerate(("a", "b", "c"))]


@pytest.mark.parametrize(
    ("choice", "names", "mode", "parallel"),
    [
        (None, "abc", "auto", True),
        ("auto", "abc", "auto", True),
        ("none", "abc", "none", True),
        ("required", "abc", "required", True),
        ({"type": "function", "function": {"name": "b"}}, "b", "required", False),
        ({"type": "function", "name": "b"}, "b", "required", False),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "c"}] * 2},
            "c",
            "auto",
            True,
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "a"}}]},
            },
            "a",
            "required",
            True,
        ),
    ],
)
def test_choices(choice, names: str, mode: str, parallel: bool) -> None:
    found = read_tool_request(TOOLS, choice, True)
    assert found is not None
    assert [tool.name for tool in found.callable] == list(names)
    assert len(found.tools) == 3
    assert (found.choice, found.parallel) == (mode, parallel)


def test_no_tools() -> None:
    assert read_tool_request([], None, None) is None
    assert read_tool_request([], "none", True) is None
    with pytest.raises(RequestError, match=r"^tool_choice: got 'required'"):
        read_tool_request([], "required", None)


@pytest.mark.parametrize(
    ("choice", "parallel", "text"),
    [
        ("any", None, r"^tool_choice: got 'any', expected none, auto, required"),
        (1, None, r"^tool_choice: got 1"),
        ({"type": "custom"}, None, r"^tool_choice: "),
        ({"type": "function", "function": {"name": "d"}}, None, r"^tool_choice\.function\.name: got 'd'"),
        ({"type": "function"}, None, r"^tool_choice\.name: got None"),
        ({"type": "allowed_tools"}, None, r"^tool_choice\.allowed_tools\.mode"),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, None, r"^tool_choice\.allowed_tools\.tools"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [1]}, None, r"^tool_choice\.allowed_tools\.tools\[0\]"),
        (None, "yes", r"^parallel_tool_calls: got 'yes'"),
    ],
)
def test_faults_of_a_choice(choice, parallel, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        read_tool_request(TOOLS, choice, parallel)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (None, r"^f: got None"),
        ({}, r"^f\.name: got None"),
        ({"name": "a b"}, r"^f\.name: got 'a b', expected 1 to 64"),
        ({"name": "a", "descriptio": "x"}, r"^f\.descriptio: .*did you mean 'description'"),
        ({"name": "a", "description": 1}, r"^f\.description: got 1"),
        ({"name": "a", "strict": "yes"}, r"^f\.strict: got 'yes'"),
        ({"name": "a", "parameters": []}, r"^f\.parameters: got \[\]"),
        ({"name": "a", "parameters": {"type": "array"}}, r"^f\.parameters\.type: got 'array'"),
    ],
)
def test_faults_of_a_function(function, text: str) -> None:
    with pytest.raises(RequestError, match=text):
        read_function(function, "f")


def test_functions_are_told_apart_and_counted() -> None:
    with pytest.raises(RequestError, match=r"^tools\[0\]\.function\.name: got 'a', expected a name that no other"):
        read_tool_request([TOOLS[0], TOOLS[0]], None, None)
    many = [read_function({"name": f"f{i}"}, f"tools[{i}].function") for i in range(129)]
    with pytest.raises(RequestError, match=r"^tools: got '129 tools', expected at most 128"):
        read_tool_request(many, None, None)


def test_strict_has_a_default() -> None:
    assert not read_function({"name": "a"}, "f").strict
    assert read_function({"name": "a"}, "f", strict=True).strict
    assert not read_function({"name": "a", "strict": False}, "f", strict=True).strict
