"""JSON schemas of the replies, for the OpenAPI document. Tests hold them against real replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["REPLIES"]

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number"}
_IDS: Schema = {"type": "array", "items": _COUNT}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_USAGE = _object(
    {
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "total_tokens": _COUNT,
        "prompt_tokens_details": _object({"cached_tokens": _COUNT}),
        "completion_tokens_details": _object(
            {"reasoning_tokens": _COUNT, "accepted_prediction_tokens": _COUNT, "rejected_prediction_tokens": _COUNT}
        ),
    }
)
_HEAD: Schema = {"id": _TEXT, "created": _COUNT, "model": _TEXT}
_REPLAY: Schema = {"system_fingerprint": _TEXT, "seed": _COUNT, "replayable": {"type": "boolean"}}
_PROMPT: Schema = {
    "prompt_logprobs": _or_null(_list(_or_null({"type": "object"}))),
    "prompt_token_ids": _IDS,
}
_ENDS: Schema = {
    "finish_reason": {"enum": ["stop", "length", "tool_calls", None]},
    "stop_reason": {"type": ["integer", "string", "null"]},
    "seed": _COUNT,
}
_TOKEN: Schema = {"token": _TEXT, "logprob": _NUMBER, "bytes": _or_null(_list({**_COUNT, "maximum": 255}))}
_CHAT_LOGPROBS = _object(
    {"content": _list(_object({**_TOKEN, "top_logprobs": _list(_object(_TOKEN))})), "refusal": {"type": "null"}}
)
_CALL = _object({"id": _TEXT, "type": {"const": "function"}, "function": _object({"name": _TEXT, "arguments": _TEXT})})
_CALL_DELTA = _object(
    {"index": _COUNT, "function": _object({"arguments": _TEXT}, {"name": _TEXT})},
    {"id": _TEXT, "type": {"const": "function"}},
)
_MESSAGE = _object(
    {"role": {"const": "assistant"}, "content": {"type": ["string", "null"]}, "refusal": {"type": "null"}},
    {"reasoning_content": _TEXT, "tool_calls": _list(_CALL)},
)
_DELTA = _object(
    {},
    {
        "role": {"const": "assistant"},
        "content": _TEXT,
        "reasoning_content": _TEXT,
        "tool_calls": _list(_CALL_DELTA),
    },
)
_COMPLETION_LOGPROBS = _object(
    {
        "tokens": _list(_TEXT),
        "token_logprobs": _list(_or_null(_NUMBER)),
        "top_logprobs": _list(_or_null({"type": "object", "additionalProperties": _NUMBER})),
        "text_offset": _IDS,
    }
)
_COMPLETION_CHOICE = _object(
    {"index": _COUNT, "text": _TEXT, "logprobs": _or_null(_COMPLETION_LOGPROBS), **_ENDS},
    {"token_ids": _IDS, **_PROMPT},
)
_CHAT_REST: Schema = {"index": _COUNT, "logprobs": _or_null(_CHAT_LOGPROBS), **_ENDS}
_MODEL = _object(
    {"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT, "max_model_len": _COUNT}
)

REPLIES: Mapping[str, Schema] = {
    "Completion": _object(
        {
            **_HEAD,
            "object": {"const": "text_completion"},
            "choices": _list(_COMPLETION_CHOICE),
            "usage": _USAGE,
            **_REPLAY,
        }
    ),
    "CompletionChunk": _object(
        {**_HEAD, "object": {"const": "text_completion"}, "choices": _list(_COMPLETION_CHOICE), **_REPLAY},
        {"usage": _or_null(_USAGE)},
    ),
    "ChatCompletion": _object(
        {
            **_HEAD,
            "object": {"const": "chat.completion"},
            "choices": _list(_object({**_CHAT_REST, "message": _MESSAGE}, {"token_ids": _IDS})),
            "usage": _USAGE,
            **_REPLAY,
        },
        _PROMPT,
    ),
    "ChatChunk": _object(
        {
            **_HEAD,
            "object": {"const": "chat.completion.chunk"},
            "choices": _list(_object({**_CHAT_REST, "delta": _DELTA}, {"token_ids": _IDS, **_PROMPT})),
            **_REPLAY,
        },
        {"usage": _or_null(_USAGE)},
    ),
    "Model": _MODEL,
    "ModelList": _object({"object": {"const": "list"}, "data": _list(_MODEL)}),
    "TokenizeReply": _object(
        {"count": _COUNT, "max_model_len": _COUNT, "tokens": _IDS, "token_strs": _or_null(_list(_TEXT))}
    ),
    "DetokenizeReply": _object({"prompt": _TEXT}),
    "Status": _object({"status": _TEXT}),
    "Version": _object({"version": _TEXT, "system_fingerprint": _TEXT}),
}
