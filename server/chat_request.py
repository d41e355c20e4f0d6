"""The body of /v1/chat/completions, beside the fields of the sampling table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from decodex.errors import RequestError
from decodex.server.completion_request import StreamOptions
from decodex.server.service import Fields
from decodex.server.tools.request import ToolRequest, read_function, read_tool_request

__all__ = ["ChatFields", "Message", "TextPart", "Tool", "template_messages", "tools_of"]


class TextPart(Fields):
    """A part of a message: text, which is all that the model reads."""

    type: Literal["text"]
    text: str


class ToolFunction(Fields):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = Field(default=None, description="JSON schema of an object.")
    strict: bool | None = Field(default=None, description="Refuse a schema that can't be honoured in full.")


class Tool(Fields):
    """A tool: a function."""

    type: Literal["function"]
    function: ToolFunction


class CalledFunction(Fields):
    """The function of a call."""

    name: str
    arguments: str = Field(description="The JSON text of an object.")


class ToolCall(Fields):
    """A call of an earlier answer."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class Message(Fields):
    """A message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = Field(default=None, description="The reasoning of an earlier answer.")
    # what clients send back of an answer, and no answer of ours has
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = Field(default=None, max_length=0)


class ChatFields(Fields):
    """Fields of a chat completion."""

    messages: list[Message] = Field(min_length=1, description="The conversation.")
    model: str | None = Field(default=None, description="The served model's name.")
    max_completion_tokens: int | None = Field(default=None, description="Most tokens to generate.")
    max_tokens: int | None = Field(default=None, description="The same as max_completion_tokens.")
    logprobs: bool = Field(default=False, description="Log-probabilities of the answer's tokens.")
    top_logprobs: int | None = Field(default=None, description="And of this many likely tokens at each position.")
    stream: bool = Field(default=False, description="Server-sent events as tokens come.")
    stream_options: StreamOptions | None = None
    tools: list[Tool] | None = Field(default=None, description="Functions that the model may call.")
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = Field(
        default=None, description="Whether and which functions are called."
    )
    parallel_tool_calls: bool | None = Field(default=None, description="Whether an answer may call several.")
    reasoning_effort: str | None = Field(default=None, description="none, minimal, low, medium or high.")
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="Variables of the chat template.")
    add_generation_prompt: bool = Field(default=True, description="Open the assistant's message.")
    return_token_ids: bool = Field(default=False, description="Token ids of the prompt and of each choice.")

    @property
    def length(self) -> tuple[str, int | None]:
        """The field that limits the answer, and its value."""
        longest, older = self.max_completion_tokens, self.max_tokens
        if longest is not None and older is not None and longest != older:
            raise RequestError("max_tokens", older, f"to be absent beside max_completion_tokens = {longest}")
        return ("max_tokens", older) if longest is None else ("max_completion_tokens", longest)

    @property
    def num_logprobs(self) -> int | None:
        """Likely tokens to show beside the chosen one; None for no log-probabilities."""
        if not self.logprobs:
            if self.top_logprobs:
                raise RequestError("top_logprobs", self.top_logprobs, "to be absent where logprobs is not true")
            return None
        return self.top_logprobs or 0


def _template_message(message: Message, field: str) -> dict[str, Any]:
    found = message.model_dump(exclude_none=True, exclude={"refusal", "audio", "function_call", "annotations"})
    if isinstance(message.content, list):
        found["content"] = "\n".join(part.text for part in message.content)
    if message.role == "developer":
        found["role"] = "system"
    if message.content is None and not (message.role == "assistant" and message.tool_calls):
        raise RequestError(f"{field}.content", None, "a text, or a list of text parts")
    if message.tool_call_id is not None and message.role != "tool":
        raise RequestError(f"{field}.tool_call_id", message.tool_call_id, "to be absent but in messages of a tool")
    if message.reasoning_content is not None and message.role != "assistant":
        raise RequestError(f"{field}.reasoning_content", "a text", "to be absent but in messages of the assistant")
    return found


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """A conversation as chat templates take it. Raises RequestError."""
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def tools_of(tools: Sequence[Tool] | None, choice: Any = None, parallel: bool | None = None) -> ToolRequest | None:
    """What the request says about tools, checked. Raises RequestError."""
    functions = [
        read_function(tool.function.model_dump(exclude_none=True), f"tools[{index}].function")
        for index, tool in enumerate(tools or ())
    ]
    return read_tool_request(functions, choice, parallel)
