"""docs/capabilities.md, the whole page: the engine's part and, found by trying it, what becomes of each HTTP field at
each endpoint: `python -m decodex.server.capabilities FILE`.

A cell comes from reading a body as the endpoint reads it; tests/server/test_capabilities.py sends the same bodies.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from decodex.capabilities import EXAMPLES, capabilities_markdown
from decodex.errors import RequestError
from decodex.server.chat_request import ChatFields, template_messages, tools_of
from decodex.server.completion_request import CompletionFields, check_stream_options
from decodex.server.config import ServerConfig
from decodex.server.errors import ApiError, api_error
from decodex.server.responses_request import (
    LOGPROBS,
    REFUSED,
    ResponseFields,
    messages_of,
    set_sampling,
    tool_request_of,
)
from decodex.server.sampling import TABLE, read_sampling, split_body
from decodex.server.service import Fields, parse

__all__ = ["ENDPOINTS", "Cell", "bodies", "cells", "page_markdown"]

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
ENDPOINTS: Mapping[str, type[Fields]] = {CHAT: ChatFields, COMPLETIONS: CompletionFields, RESPONSES: ResponseFields}
PLAIN: Mapping[str, Mapping[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "abc"}]},
    COMPLETIONS: {"prompt": "abc"},
    RESPONSES: {"input": "abc"},
}
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
TOOLS = {CHAT: [{"type": "function", "function": FUNCTION}], RESPONSES: [{"type": "function", **FUNCTION}]}

# a value of every field that is no sampling parameter; {} for those that take none
VALUES: Mapping[str, Any] = {
    **{name: value for name, value in EXAMPLES.items() if name not in ("logits_processors", "logprobs")},
    "messages": PLAIN[CHAT]["messages"], "prompt": "abc", "input": "abc", "max_completion_tokens": 8, "max_tokens": 8,
    "max_output_tokens": 8, "stream": True, "echo": True, "return_token_ids": True, "instructions": "ab",
    "tool_choice": "none", "parallel_tool_calls": False, "reasoning_effort": "none", "reasoning": {"effort": "none"},
    "chat_template_kwargs": {"ab": 1}, "add_generation_prompt": False, "text": {"format": {"type": "text"}},
    "include": [LOGPROBS], "top_logprobs": 2, "prompt_cache_key": "ab", "cache_salt": "ab", "priority": 1,
    "response_format": {"type": "json_object"}, "model": "another",
}  # fmt: skip
OF_ENDPOINT: Mapping[str, Mapping[str, Any]] = {
    CHAT: {"logprobs": True, "stream_options": {"include_usage": True}, "tools": TOOLS[CHAT]},
    COMPLETIONS: {"logprobs": 2, "stream_options": {"include_usage": True}},
    RESPONSES: {"stream_options": {"include_obfuscation": False}, "tools": TOOLS[RESPONSES], "prompt": {"id": "p"}},
}
# what some fields need beside them
BESIDE: Mapping[str, Mapping[str, Any]] = {
    CHAT: {"top_logprobs": {"logprobs": True}, "logprob_token_ids": {"logprobs": True}},
    COMPLETIONS: {"logprob_token_ids": {"logprobs": 1}},
    RESPONSES: {name: {"include": [LOGPROBS]} for name in ("top_logprobs", "logprob_token_ids")},
}

KINDS = {"string": ("any text", "abc"), "object": ("texts by name", {"a": "b"})}  # of what does nothing

HEADING = "## 7. HTTP fields\n"
INTRO = """
Each field of a request body, at each endpoint. *works*: it does what [server.md](server.md) says, within its range.
*no-op*: the values in brackets are let through and do nothing, as does null. A number is the status of the error, with
its `code`; `param` names the field. Fields that are in no row are 400 `unknown_parameter` everywhere. `model` is 404
but for the served model's name.
"""


@dataclass(frozen=True)
class Cell:
    """What becomes of one field at one endpoint."""

    idle: str  # values that are let through without an effect, in words
    error: ApiError | None  # of a value that asks for something

    def __str__(self) -> str:
        idle = f"no-op ({self.idle})" if self.idle else ""
        refused = "" if self.error is None else f"{self.error.status} `{self.error.body['error']['code']}`"
        return ", else ".join(filter(None, (idle, refused))) or "works"


def bodies(path: str, name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A body in which the field asks for something, and those in which it has a value that does nothing."""
    beside = {**PLAIN[path], **({"stream": True} if name == "stream_options" else {}), **BESIDE[path].get(name, {})}
    if name in ("tool_choice", "parallel_tool_calls") and path in TOOLS:
        beside["tools"] = TOOLS[path]
    value = OF_ENDPOINT[path].get(name, VALUES.get(name, {}))
    if name in TABLE and TABLE[name].is_ignored:
        value = 7  # which none of them lets through
    return {**beside, name: value}, [{**beside, name: one} for one in _idle(path, name)]


def _idle(path: str, name: str) -> list[Any]:
    """Values that do nothing, on purpose; of kinds of values one."""
    if path == RESPONSES and name in REFUSED:
        return list(REFUSED[name][0])
    if name in ENDPOINTS[path].model_fields or name not in TABLE or not TABLE[name].is_ignored:
        return []
    schema = TABLE[name].schema
    example = KINDS.get(schema.get("type", ""), ("", None))[1]
    values = [schema["const"]] if "const" in schema else schema.get("enum", [example])
    return [value for value in values if value is not None]


def _in_words(values: Sequence[Any]) -> str:
    """What is let through."""
    words = {json.dumps(example): kind for kind, example in KINDS.values()}
    return ", ".join(words.get(json.dumps(value), f"`{json.dumps(value)}`") for value in values)


def _read(path: str, body: Mapping[str, Any]) -> None:
    """Read a body as its endpoint does, without a model. Raises what the endpoint raises."""
    own, others = split_body(body, ENDPOINTS[path].model_fields, "a body")
    fields = parse(ENDPOINTS[path], own)
    if getattr(fields, "model", None) is not None:
        raise ApiError(404, "another model", param="model", code="model_not_found")
    if isinstance(fields, ResponseFields):
        fields.check()
        tool_request_of(fields)
        messages_of(fields)
    sampling = read_sampling(others)
    if isinstance(fields, ResponseFields):
        set_sampling(fields, sampling)
    elif isinstance(fields, ChatFields):
        check_stream_options(fields.stream_options, fields.stream)
        tools_of(fields.tools, fields.tool_choice, fields.parallel_tool_calls)
        template_messages(fields.messages)
        assert fields.length
        assert fields.num_logprobs is None or fields.logprobs
    elif isinstance(fields, CompletionFields):
        fields.check()
        check_stream_options(fields.stream_options, fields.stream)
        assert fields.prompts
    sampling.params(ServerConfig())


def _error_of(path: str, body: Mapping[str, Any]) -> ApiError | None:
    try:
        _read(path, body)
    except (RequestError, ApiError) as error:
        return api_error(error)
    return None


def _cell(path: str, name: str) -> Cell:
    asking, idle = bodies(path, name)
    for body in idle:
        assert _error_of(path, body) is None, body
    error = _error_of(path, asking)
    assert error is not None or not idle, asking
    return Cell(_in_words(_idle(path, name)), error)


def cells() -> dict[str, dict[str, Cell]]:
    """The cells by field and endpoint."""
    names = dict.fromkeys([*(name for fields in ENDPOINTS.values() for name in fields.model_fields), *TABLE])
    return {name: {path: _cell(path, name) for path in ENDPOINTS} for name in names}


def page_markdown() -> str:
    """The page."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, line in cells().items():
        rows.setdefault(tuple(map(str, line.values())), []).append(f"`{name}`")
    table = [
        "| field | " + " | ".join(f"`{path}`" for path in ENDPOINTS) + " |\n" + "|---" * (len(ENDPOINTS) + 1) + "|"
    ]
    table += ["| " + " | ".join((", ".join(names), *line)) + " |" for line, names in rows.items()]
    return capabilities_markdown() + "\n" + HEADING + INTRO + "\n" + "\n".join(table) + "\n"


if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).write_text(page_markdown(), encoding="utf-8")
