"""/tokenize and /detokenize: texts and conversations as the model reads them."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from pydantic import Field

from decodex.definition import check_int
from decodex.errors import RequestError
from decodex.server.chat_request import Message, Tool, template_messages, tools_of
from decodex.server.conversation import Conversations
from decodex.server.sampling import Sampling
from decodex.server.service import Fields, Service, parse

__all__ = ["DetokenizeFields", "TokenizeFields", "detokenize", "tokenize"]


class TokenizeFields(Fields):
    """What to tokenize: a prompt, or a conversation."""

    model: str | None = Field(default=None, description="The served model's name.")
    prompt: str | None = Field(default=None, description="A text.")
    messages: list[Message] | None = Field(default=None, min_length=1, description="A conversation.")
    tools: list[Tool] | None = Field(default=None, description="The conversation's tools, for the template.")
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="Variables of the template.")
    add_generation_prompt: bool = Field(default=True, description="Open the assistant's message.")
    add_special_tokens: bool = Field(
        default=True, description="As before a completion: what the tokenizer puts around texts."
    )
    return_token_strs: bool = Field(default=False, description="The tokens as texts, too.")


class DetokenizeFields(Fields):
    """Token ids."""

    model: str | None = Field(default=None, description="The served model's name.")
    tokens: list[int] = Field(description="Token ids.")


async def tokenize(service: Service, body: Any) -> dict[str, Any]:
    """Token ids, their number, and the longest sequence that there can be."""
    fields = parse(TokenizeFields, _object(body))
    service.check_model(fields.model)
    if (fields.prompt is None) == (fields.messages is None):
        raise RequestError("prompt", fields.prompt, "one of prompt and messages")
    tokenizer = service.tokenizer
    if fields.prompt is not None:
        text = fields.prompt
        if any(0xD800 <= ord(character) <= 0xDFFF for character in text):
            raise RequestError("prompt", text, "text without lone surrogates")
        ids = await service.beside_loop(lambda: tokenizer.encode(text, fields.add_special_tokens), len(text))
    else:
        messages = template_messages(fields.messages or ())
        prepare = functools.partial(
            Conversations(tokenizer, service.config).prepare,
            messages,
            tools_of(fields.tools),
            Sampling({}),
            template_values=fields.chat_template_kwargs,
            add_generation_prompt=fields.add_generation_prompt,
        )
        ids = (await asyncio.to_thread(prepare)).token_ids
    reply = {"count": len(ids), "max_model_len": service.limits.max_model_len, "tokens": ids}
    return {
        **reply,
        "token_strs": [service.texts.name_of(token) for token in ids] if fields.return_token_strs else None,
    }


async def detokenize(service: Service, body: Any) -> dict[str, Any]:
    """The text of token ids, special tokens included."""
    fields = parse(DetokenizeFields, _object(body))
    service.check_model(fields.model)
    for index, token in enumerate(fields.tokens):
        check_int(f"tokens[{index}]", token, 0, service.tokenizer.vocab_size - 1)
    return {
        "prompt": await service.beside_loop(lambda: service.tokenizer.decode(fields.tokens, False), len(fields.tokens))
    }


def _object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise RequestError("body", body, "a JSON object")
    return body
