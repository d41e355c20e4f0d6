"""What a request says about tools, checked: its functions, whether they are to be called, and which."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from decodex.errors import RequestError, nearest_name

__all__ = ["Tool", "ToolRequest", "read_function", "read_tool_request"]

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FUNCTION_KEYS = ("name", "description", "parameters", "strict")

Choice = Literal["none", "auto", "required"]


@dataclass(frozen=True)
class Tool:
    """A function. `strict`: its schema must be honoured in full, or the request is refused."""

    name: str
    description: str | None
    parameters: Mapping[str, Any]  # JSON schema of an object
    strict: bool
    field: str  # where it stands in the request

    @property
    def as_template_value(self) -> dict[str, Any]:
        """How chat templates take it."""
        function = {"name": self.name, "description": self.description or "", "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class ToolRequest:
    """All functions, those of them that may be called, and how."""

    tools: tuple[Tool, ...]
    callable: tuple[Tool, ...]
    choice: Choice
    parallel: bool | None  # None: as the format has it


def read_tool_request(
    tools: Sequence[Tool], choice: Any, parallel: Any, field: str = "tool_choice"
) -> ToolRequest | None:
    """A request's functions with its `tool_choice` and `parallel_tool_calls`; None where it has none."""
    if parallel is not None and not isinstance(parallel, bool):
        raise RequestError("parallel_tool_calls", parallel, "true or false")
    if not tools:
        if choice not in (None, "none", "auto"):
            raise RequestError(field, choice, "to be absent, or none or auto, where there are no tools")
        return None
    if len(tools) > MAX_TOOLS:
        raise RequestError("tools", f"{len(tools)} tools", f"at most {MAX_TOOLS}")
    by_name: dict[str, Tool] = {}
    for tool in tools:
        if tool.name in by_name:
            raise RequestError(f"{tool.field}.name", tool.name, "a name that no other tool has")
        by_name[tool.name] = tool
    if choice is None or choice in ("auto", "none", "required"):
        return ToolRequest(tuple(tools), tuple(tools), choice or "auto", parallel)
    names, mode = _named(choice, field)
    for name, place in names:
        if name not in by_name:
            raise RequestError(place, name, "the name of one of the tools", nearest_name(name, by_name))
    is_one = not isinstance(choice, Mapping) or choice.get("type") == "function"
    wanted = tuple(by_name[name] for name in dict.fromkeys(name for name, _ in names))
    return ToolRequest(tuple(tools), wanted, mode, False if is_one else parallel)


def _named(choice: Any, field: str) -> tuple[list[tuple[str, str]], Choice]:
    """The functions that a `tool_choice` names, each with its place, and the mode."""
    if not isinstance(choice, Mapping) or choice.get("type") not in ("function", "allowed_tools"):
        expected = "none, auto, required, or an object of the type function or allowed_tools"
        raise RequestError(field, choice, expected)
    if choice["type"] == "function":
        return [_function_name(choice, field)], "required"
    path = f"{field}.allowed_tools"
    inner = choice.get("allowed_tools", {key: value for key, value in choice.items() if key != "type"})
    if not isinstance(inner, Mapping) or inner.get("mode") not in ("auto", "required"):
        raise RequestError(f"{path}.mode", inner, "auto or required")
    listed = inner.get("tools")
    if not isinstance(listed, list) or not listed:
        raise RequestError(f"{path}.tools", listed, "a list of at least one {'type': 'function', ...}")
    names = []
    for index, one in enumerate(listed):
        place = f"{path}.tools[{index}]"
        if not isinstance(one, Mapping) or one.get("type") != "function":
            raise RequestError(place, one, "an object of the type function")
        names.append(_function_name(one, place))
    return names, inner["mode"]


def _function_name(value: Mapping[str, Any], place: str) -> tuple[str, str]:
    """The name, as chat completions nest it or as responses write it."""
    if "function" in value:
        function, place = value["function"], f"{place}.function.name"
        name = function.get("name") if isinstance(function, Mapping) else None
    else:
        name, place = value.get("name"), f"{place}.name"
    if not isinstance(name, str):
        raise RequestError(place, name, "a function's name")
    return name, place


def read_function(value: Any, field: str, strict: bool = False) -> Tool:
    """A function's definition; `strict` is what an absent one means."""
    if not isinstance(value, Mapping):
        raise RequestError(field, value, "an object with name, description and parameters")
    for key in value:
        if key not in _FUNCTION_KEYS:
            expected = f"one of {', '.join(_FUNCTION_KEYS)}"
            raise RequestError(f"{field}.{key}", value[key], expected, nearest_name(str(key), _FUNCTION_KEYS))
    name, description = value.get("name"), value.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(f"{field}.name", name, "1 to 64 letters, digits, underscores, dots and dashes")
    if description is not None and not isinstance(description, str):
        raise RequestError(f"{field}.description", description, "a text")
    is_strict = value.get("strict")
    if is_strict is not None and not isinstance(is_strict, bool):
        raise RequestError(f"{field}.strict", is_strict, "true or false")
    parameters = value.get("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise RequestError(f"{field}.parameters", parameters, "a JSON schema of an object")
    if parameters.get("type", "object") != "object":
        raise RequestError(f"{field}.parameters.type", parameters["type"], "object: arguments are JSON objects")
    parameters = {**parameters, "type": "object"}
    return Tool(name, description, parameters, strict if is_strict is None else is_strict, field)
