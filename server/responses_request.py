"""The body of /v1/responses, and what it comes to: a conversation, tools, and fields of the sampling table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from decodex.errors import RequestError, nearest_name
from decodex.server.errors import unknown_field
from decodex.server.sampling import Sampling, json_schema
from decodex.server.service import Fields
from decodex.server.tools.request import Tool, ToolRequest, read_function, read_tool_request

__all__ = ["LOGPROBS", "REFUSED", "ResponseFields", "messages_of", "set_sampling", "tool_request_of"]

LOGPROBS = "message.output_text.logprobs"
_STORED = "this server stores nothing: send the whole conversation as input"
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}
REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {  # values that ask for nothing, and why no others
    "background": ((False,), "responses are answered at once"),
    "context_management": ((), "what is too long is refused, and nothing is dropped"),
    "conversation": ((), _STORED),
    "max_tool_calls": ((), "it limits tools that a server runs itself, and there are none here"),
    "moderation": ((), "nothing is moderated here"),
    "n": ((1,), "a response is one output; chat completions have n choices"),
    "prompt": ((), "there are no stored prompts"),
    "prompt_cache_options": ((), "the prefix cache keeps what fits"),
    "prompt_logprobs": ((), "an output has no place for them; completions and chat completions do"),
    "response_format": ((), "write text: {format: ...}"),
    "truncation": (("disabled",), "an input that is too long is refused, and nothing is dropped"),
}


class TextFields(Fields):
    """How the text is to be."""

    format: dict[str, Any] | None = Field(default=None, description="text, json_object or json_schema.")
    verbosity: str | None = Field(default=None, description="medium; others are refused.")


class ReasoningFields(Fields):
    """How much the model reasons."""

    effort: str | None = Field(default=None, description="none, minimal, low, medium or high.")
    summary: Any = Field(default=None, description="Refused: reasoning is shown as it is.")
    generate_summary: Any = Field(default=None, description="Refused, as summary.")


class StreamFields(Fields):
    """What a stream says beside the answer."""

    include_obfuscation: bool | None = Field(default=None, description="Refused but for false: events are not padded.")


class ResponseFields(Fields):
    """Fields of a response."""

    model: str | None = Field(default=None, description="The served model's name.")
    input: str | list[dict[str, Any]] = Field(description="A text, or items: messages, function calls, their outputs.")
    instructions: str | None = Field(default=None, description="A system message before the input.")
    max_output_tokens: int | None = Field(default=None, description="Most tokens to generate, reasoning included.")
    stream: bool = Field(default=False, description="Server-sent events as tokens come.")
    stream_options: StreamFields | None = None
    text: TextFields | None = None
    tools: list[dict[str, Any]] | None = Field(default=None, description="Functions that the model may call.")
    tool_choice: str | dict[str, Any] | None = Field(
        default=None, description="none, auto, required, a function, or allowed_tools."
    )
    parallel_tool_calls: bool | None = Field(default=None, description="Whether there may be several calls.")
    reasoning: ReasoningFields | None = None
    include: list[str] | None = Field(default=None, description=f"{LOGPROBS}; others are refused.")
    top_logprobs: int | None = Field(default=None, description="This many likely tokens beside each; needs include.")
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="Variables of the chat template.")
    background: Any = Field(default=None, description="Refused but for false.")
    context_management: Any = Field(default=None, description="Refused.")
    conversation: Any = Field(default=None, description="Refused: nothing is stored.")
    max_tool_calls: Any = Field(default=None, description="Refused.")
    moderation: Any = Field(default=None, description="Refused.")
    n: Any = Field(default=None, description="Refused but for 1.")
    prompt: Any = Field(default=None, description="Refused: there are no stored prompts.")
    prompt_cache_options: Any = Field(default=None, description="Refused.")
    prompt_logprobs: Any = Field(default=None, description="Refused: completions and chat completions have them.")
    response_format: Any = Field(default=None, description="Refused: write text.format.")
    truncation: Any = Field(default=None, description="Refused but for disabled.")

    @property
    def effort(self) -> str | None:
        """reasoning.effort."""
        return None if self.reasoning is None else self.reasoning.effort

    @property
    def wants_logprobs(self) -> bool:
        """Whether log-probabilities are to be included."""
        return LOGPROBS in (self.include or ())

    def check(self) -> None:
        """Refuse what is not offered. Raises RequestError."""
        for name, (allowed, reason) in REFUSED.items():
            value = getattr(self, name)
            if value is not None and not any(type(value) is type(one) and value == one for one in allowed):
                expected = " or ".join(map(repr, allowed)) or "to be absent"
                raise RequestError(name, value, expected, reason)
        if self.stream_options is not None and not self.stream:
            raise RequestError("stream_options", {}, "to be absent where stream is not true")
        if self.stream_options is not None and self.stream_options.include_obfuscation:
            raise RequestError("stream_options.include_obfuscation", True, "false", "events are not padded")
        for name in ("summary", "generate_summary"):
            if self.reasoning is not None and (value := getattr(self.reasoning, name)) is not None:
                raise RequestError(f"reasoning.{name}", value, "to be absent", "reasoning is shown as it is")
        if self.text is not None and self.text.verbosity not in (None, "medium"):
            raise RequestError("text.verbosity", self.text.verbosity, "medium", "say it in the instructions")
        for index, name in enumerate(self.include or ()):
            if name != LOGPROBS:
                raise RequestError(f"include[{index}]", name, LOGPROBS, "there is nothing else to include")
        if self.top_logprobs and not self.wants_logprobs:
            raise RequestError("top_logprobs", self.top_logprobs, f"include: [{LOGPROBS!r}] beside it")


def set_sampling(fields: ResponseFields, sampling: Sampling) -> None:
    """What the fields say about parameters. Raises RequestError."""
    if fields.max_output_tokens is not None:
        sampling.set("max_tokens", fields.max_output_tokens, "max_output_tokens")
    wanted = sampling.values.get("logprob_token_ids")
    if wanted and not fields.wants_logprobs:
        raise RequestError("logprob_token_ids", wanted, f"include: [{LOGPROBS!r}] beside it")
    if fields.wants_logprobs:
        sampling.set("logprobs", fields.top_logprobs or 0, "top_logprobs")
    if fields.text is None or fields.text.format is None:
        return
    value = fields.text.format
    kind = value.get("type")
    if kind == "json_schema":
        schema = json_schema("text.format", {key: one for key, one in value.items() if key != "type"})
        sampling.set("structured_outputs", {"json": schema}, "text.format")
        sampling.names["structured_outputs.json"] = "text.format.schema"
    elif kind in ("text", "json_object"):
        for key in value:
            if key != "type":
                raise unknown_field(RequestError(f"text.format.{key}", value[key], "type and nothing else"))
        if kind == "json_object":
            sampling.set("structured_outputs", {"json_object": True}, "text.format")
    else:
        raise RequestError("text.format.type", kind, "text, json_object or json_schema")


def tool_request_of(fields: ResponseFields) -> ToolRequest | None:
    """The functions, of which an absent `strict` means true. Raises RequestError."""
    tools: list[Tool] = []
    for index, tool in enumerate(fields.tools or ()):
        place = f"tools[{index}]"
        if tool.get("type") != "function":
            raise RequestError(f"{place}.type", tool.get("type"), "function: this server runs no tools itself")
        tools.append(read_function({key: one for key, one in tool.items() if key != "type"}, place, strict=True))
    return read_tool_request(tools, fields.tool_choice, fields.parallel_tool_calls)


def messages_of(fields: ResponseFields) -> list[dict[str, Any]]:
    """The conversation as chat messages. Raises RequestError."""
    reader = _Items()
    if isinstance(fields.input, str):
        reader.messages.append({"role": "user", "content": fields.input})
    else:
        for index, item in enumerate(fields.input):
            reader.read(item, f"input[{index}]")
    found = reader.messages
    if reader.reasoning:
        found.append({"role": "assistant", "content": "", "reasoning_content": reader.reasoning})
    if fields.instructions is None:
        return found
    if found and found[0]["role"] == "system":
        return [{"role": "system", "content": f"{fields.instructions}\n\n{found[0]['content']}"}, *found[1:]]
    return [{"role": "system", "content": fields.instructions}, *found]


class _Items:
    """Puts items together to messages: what the assistant thought, said and called in one turn is one message."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.reasoning = ""  # for the assistant's next message

    def read(self, item: Mapping[str, Any], place: str) -> None:
        """One item."""
        kind = item.get("type", "message")
        if kind == "message":
            self._message(item, place)
        elif kind == "function_call":
            self._call(item, place)
        elif kind == "function_call_output":
            _check_keys(item, place, ("type", "id", "status", "call_id", "output"))
            content = _text(item.get("output"), f"{place}.output")
            call_id = _string(item, "call_id", place)
            self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
        elif kind == "reasoning":
            _check_keys(item, place, ("type", "id", "status", "summary", "content"))
            self.reasoning += _reasoning(item, place)
        else:
            hint = _STORED if kind == "item_reference" else ""
            expected = "message, function_call, function_call_output or reasoning"
            raise RequestError(f"{place}.type", kind, expected, hint)

    def _message(self, item: Mapping[str, Any], place: str) -> None:
        _check_keys(item, place, ("type", "id", "status", "role", "content", "phase"))
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise RequestError(f"{place}.role", role, f"one of {', '.join(_ROLES)}")
        message = {"role": _ROLES[role], "content": _text(item.get("content"), f"{place}.content")}
        if role == "assistant":
            message |= self._thought()
        self.messages.append(message)

    def _call(self, item: Mapping[str, Any], place: str) -> None:
        _check_keys(item, place, ("type", "id", "status", "call_id", "name", "arguments"))
        function = {"name": _string(item, "name", place), "arguments": _string(item, "arguments", place)}
        call = {"id": _string(item, "call_id", place), "type": "function", "function": function}
        last: dict[str, Any] = self.messages[-1] if self.messages else {"role": ""}
        if last["role"] != "assistant" or self.reasoning:
            last = {"role": "assistant", "content": "", **self._thought()}
            self.messages.append(last)
        last.setdefault("tool_calls", []).append(call)

    def _thought(self) -> dict[str, Any]:
        reasoning, self.reasoning = self.reasoning, ""
        return {"reasoning_content": reasoning} if reasoning else {}


def _check_keys(item: Mapping[str, Any], place: str, known: Sequence[str]) -> None:
    for key, value in item.items():
        if key not in known and value is not None:
            expected = f"one of {', '.join(known)}"
            raise unknown_field(RequestError(f"{place}.{key}", value, expected, nearest_name(key, known)))


def _string(item: Mapping[str, Any], key: str, place: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise RequestError(f"{place}.{key}", value, "a text")
    return value


def _text(value: Any, place: str) -> str:
    """A text, or the texts of parts."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise RequestError(place, value, "a text, or a list of text parts")
    texts = []
    for index, part in enumerate(value):
        kind = part.get("type") if isinstance(part, Mapping) else None
        key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
        if key is None or not isinstance(part.get(key), str):
            expected = "a part of the type input_text, output_text or refusal: the model reads text"
            raise RequestError(f"{place}[{index}]", part, expected)
        texts.append(part[key])
    return "".join(texts)


def _reasoning(item: Mapping[str, Any], place: str) -> str:
    parts = item.get("content") or ()
    if not isinstance(parts, list | tuple):
        raise RequestError(f"{place}.content", parts, "a list of parts")
    texts = []
    for index, part in enumerate(parts):
        if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
            raise RequestError(f"{place}.content[{index}]", part, "a part of the type reasoning_text")
        texts.append(part["text"])
    return "".join(texts)
