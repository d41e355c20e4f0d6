"""The body of /v1/completions, beside the fields of the sampling table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pydantic import Field

from decodex.errors import RequestError
from decodex.server.service import Fields

__all__ = ["CompletionFields", "StreamOptions", "check_stream_options"]


class StreamOptions(Fields):
    """What a stream says beside the answer."""

    include_usage: bool | None = Field(default=None, description="A last event with the usage.")
    continuous_usage_stats: bool | None = Field(default=None, description="The usage so far in every event.")
    include_obfuscation: bool | None = Field(default=None, description="Refused but for false: events are not padded.")


class CompletionFields(Fields):
    """Fields of a completion."""

    model: str | None = Field(default=None, description="The served model's name.")
    prompt: str | list[str] | list[int] | list[list[int]] = Field(
        description="A text, a list of texts, token ids, or a list of those."
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
        """One or more prompts as a list."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return cast("list[str | list[int]]", self.prompt)


def check_stream_options(options: StreamOptions | None, stream: bool) -> StreamOptions:
    """The options, or what stands for none. Raises RequestError."""
    if options is None:
        return StreamOptions()
    if not stream:
        raise RequestError("stream_options", options.model_dump(), "to be absent where stream is not true")
    if options.include_obfuscation:
        raise RequestError("stream_options.include_obfuscation", True, "false", "events are not padded")
    return options
