"""A conversation with tools as a chat template takes it: the model's own way where its template has one, else text."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from decodex.errors import RequestError
from decodex.server.tools.parser import fitting_id
from decodex.server.tools.request import Tool, ToolRequest
from decodex.server.tools.syntax import CallSyntax

__all__ = ["messages_for_template", "tools_for_template"]

Message = dict[str, Any]


def tools_for_template(request: ToolRequest | None, variables: Collection[str]) -> list[dict[str, Any]] | None:
    """The functions that a template shows to the model; None where there are none, or it reads no `tools`."""
    if request is None or request.choice == "none" or "tools" not in variables:
        return None
    return [tool.as_template_value for tool in request.tools]


def messages_for_template(
    messages: Sequence[Mapping[str, Any]],
    request: ToolRequest | None,
    syntax: CallSyntax,
    template: str | None,
    variables: Collection[str],
) -> list[Message]:
    """Checked copies of `messages`: arguments as objects, ids as the template takes them, and what the template, which
    reads these `variables`, has no words for as plain text. RequestError names the field."""
    names: dict[str, str] = {}
    found = [_message(dict(message), f"messages[{i}]", names, syntax) for i, message in enumerate(messages)]
    if syntax.is_single:
        found = _one_call_each(found)
    if "tool_calls" not in (template or ""):
        found = [_with_written_calls(message, syntax) for message in found]
    if not re.search(r"""['"](tool|ipython|tool_results)['"]""", template or ""):
        found = _results_as_user(found)
    if request is not None and request.choice != "none" and "tools" not in variables:
        found = _with_instructions(found, request, syntax)
    return found


def _message(message: Message, field: str, names: dict[str, str], syntax: CallSyntax) -> Message:
    """One message, checked; `names` collects which call an id belongs to."""
    role = message.get("role")
    if role == "tool":
        call_id = message.get("tool_call_id")
        if not isinstance(call_id, str):
            raise RequestError(f"{field}.tool_call_id", call_id, "the id of the call that this answers")
        message["tool_call_id"] = fitting_id(syntax, call_id)
        if call_id in names:
            message.setdefault("name", names[call_id])
        return message
    calls = message.get("tool_calls")
    if calls is None:
        message.pop("tool_calls", None)
        return message
    if role != "assistant" or not isinstance(calls, list) or not calls:
        raise RequestError(f"{field}.tool_calls", calls, "a list of at least one call, in a message of the assistant")
    message["tool_calls"] = [_call(one, f"{field}.tool_calls[{i}]", names, syntax) for i, one in enumerate(calls)]
    message["content"] = message.get("content") or ""
    return message


def _call(value: Any, field: str, names: dict[str, str], syntax: CallSyntax) -> Message:
    if not isinstance(value, Mapping) or value.get("type", "function") != "function":
        raise RequestError(field, value, "an object of the type function")
    call_id, function = value.get("id"), value.get("function")
    if not isinstance(call_id, str):
        raise RequestError(f"{field}.id", call_id, "a text")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{field}.function", function, "an object with name and arguments")
    names[call_id] = function["name"]
    arguments = _arguments(function.get("arguments"), f"{field}.function.arguments")
    inner = {"name": function["name"], "arguments": arguments}
    return {"id": fitting_id(syntax, call_id), "type": "function", "function": inner}


def _arguments(value: Any, field: str) -> dict[str, Any]:
    """Templates print objects; clients send them as text. An empty text is no arguments."""
    if value in (None, ""):
        return {}
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise RequestError(field, value, "the JSON text of an object", str(error)) from None
    if not isinstance(found, dict):
        raise RequestError(field, value, "the JSON text of an object")
    return found


def _one_call_each(messages: Sequence[Message]) -> list[Message]:
    """Each call in a message of its own, its result behind it."""
    found: list[Message] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            found.append(message)
            continue
        results: list[Message] = []
        while at < len(messages) and messages[at]["role"] == "tool":
            results.append(messages[at])
            at += 1
        for index, call in enumerate(calls):
            found.append({**message, "content": message["content"] if index == 0 else "", "tool_calls": [call]})
            mine = [result for result in results if result["tool_call_id"] == call["id"]]
            found += mine
            results = [result for result in results if result not in mine]
        found += results
    return found


def _with_written_calls(message: Message, syntax: CallSyntax) -> Message:
    """Calls as the text that the model would write."""
    if "tool_calls" not in message:
        return message
    calls = [call["function"] for call in message["tool_calls"]]
    text = syntax.write([(one["name"], json.dumps(one["arguments"], ensure_ascii=False)) for one in calls])
    content = f"{message['content']}\n{text}" if message["content"] else text
    return {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": content}


def _results_as_user(messages: Sequence[Message]) -> list[Message]:
    """Results as a message of the user, several in a row as one."""
    found: list[Message] = []
    is_result = False
    for message in messages:
        if message.get("role") != "tool":
            found.append(message)
            is_result = False
            continue
        name = message.get("name")
        text = f"Result of {name}: {message.get('content', '')}" if name else f"Result: {message.get('content', '')}"
        if is_result:
            found[-1] = {"role": "user", "content": f"{found[-1]['content']}\n{text}"}
        else:
            found.append({"role": "user", "content": text})
        is_result = True
    return found


def _with_instructions(messages: Sequence[Message], request: ToolRequest, syntax: CallSyntax) -> list[Message]:
    """The functions in a system message: the template's own, or the first."""
    text = _instructions(request.tools, syntax)
    if messages and messages[0].get("role") in ("system", "developer") and isinstance(messages[0].get("content"), str):
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _instructions(tools: Sequence[Tool], syntax: CallSyntax) -> str:
    listed = "\n".join(json.dumps(tool.as_template_value["function"], ensure_ascii=False) for tool in tools)
    example = syntax.write([("NAME", "ARGUMENTS")])
    return (
        f"You can call these functions:\n{listed}\n\n"
        f"To call one, answer with its name and arguments (a JSON object), and nothing else, like this:\n{example}"
    )
