"""The body of /v1/completions, beside the fields of the sampling table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from decodex.errors import RequestError
from decodex.server.service import Fields

__all__ = ["CompletionFields", "StreamOptions", "check_stream_options"]


_TEXT: dict[str, Any] = {"type": "string"}
_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}


class StreamOptions(Fields):
    """What a stream says beside the answer."""

    include_usage: bool | None = Field(default=None, description="A last event with the usage.")
    continuous_usage_stats: bool | None = Field(default=None, description="The usage so far in every event.")
    include_obfuscation: bool | None = Field(default=None, description="Refused but for false: events are not padded.")


class CompletionFields(Fields):
    """Fields of a completion."""

    model: str | None = Field(default=None, description="The served model's name.")
    prompt: Any = Field(
        description="A text, a list of texts, token ids, or a list of those.",
        json_schema_extra={"anyOf": [_TEXT, {"type": "array", "items": _TEXT}, _IDS, {"type": "array", "items": _IDS}]},
    )
    max_tokens: int | None = Field(
        default=None, description="Most tokens to generate: 16 when absent; 0 beside echo only."
    )
    logprobs: int | None = Field(
        default=None, description="Log-probabilities of the chosen and of this many likely tokens."
    )
    echo: bool = Field(default=False, description="The prompt before the completion; its log-probabilities too.")
    suffix: Any = Field(default=None, description="Refused: the model continues texts and fills no gaps.")
    stream: bool = Field(default=False, description="Server-sent events as tokens come.")
    stream_options: StreamOptions | None = None
    return_token_ids: bool = Field(default=False, description="Token ids of the prompt and of each choice.")

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """One or more prompts as a list; their tokens are checked at admission. Raises RequestError."""
        prompt = self.prompt
        if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and not isinstance(prompt[0], str | list)):
            return [prompt]
        if not isinstance(prompt, list):
            raise RequestError("prompt", prompt, "a text, a list of texts, token ids, or a list of those")
        kind = "a text" if prompt and isinstance(prompt[0], str) else "a list of token ids"
        for index, item in enumerate(prompt):
            if not isinstance(item, str if kind == "a text" else list):
                raise RequestError(f"prompt[{index}]", item, f"{kind}, as prompt[0] is")
        return prompt

    def check(self) -> None:
        """Refuse what is not offered. Raises RequestError."""
        if self.suffix is not None:
            raise RequestError("suffix", self.suffix, "to be absent", "the model continues texts and fills no gaps")


def check_stream_options(options: StreamOptions | None, stream: bool) -> StreamOptions:
    """The options, or what stands for none. Raises RequestError."""
    if options is None:
        return StreamOptions()
    if not stream:
        raise RequestError("stream_options", options.model_dump(), "to be absent where stream is not true")
    if options.include_obfuscation:
        raise RequestError("stream_options.include_obfuscation", True, "false", "events are not padded")
    return options
