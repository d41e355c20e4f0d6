"""JSON schemas of a response and of its events, for the OpenAPI document. Tests hold them against real ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["RESPONSE_REPLIES"]

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NUMBER: Schema = {"type": "number"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_STATUS: Schema = {"enum": ["in_progress", "completed", "incomplete"]}


def _object(properties: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": {**properties, **(optional or {})},
        "required": list(properties),
        "additionalProperties": False,
    }


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


_TOKEN: Schema = {"token": _TEXT, "logprob": _NUMBER, "bytes": _list({**_COUNT, "maximum": 255})}
_LOGPROBS = _list(_object({**_TOKEN, "top_logprobs": _list(_object(_TOKEN))}))
_TEXT_PART = _object(
    {"type": {"const": "output_text"}, "text": _TEXT, "annotations": {"type": "array"}, "logprobs": _LOGPROBS}
)
_REASONING_PART = _object({"type": {"const": "reasoning_text"}, "text": _TEXT})
_PART: Schema = {"anyOf": [_TEXT_PART, _REASONING_PART]}
_ITEM: Schema = {
    "anyOf": [
        _object(
            {
                "id": _TEXT,
                "type": {"const": "message"},
                "status": _STATUS,
                "role": {"const": "assistant"},
                "content": _list(_TEXT_PART),
            }
        ),
        _object(
            {
                "id": _TEXT,
                "type": {"const": "reasoning"},
                "status": _STATUS,
                "summary": {"type": "array", "maxItems": 0},
                "content": _list(_REASONING_PART),
            }
        ),
        _object(
            {
                "id": _TEXT,
                "type": {"const": "function_call"},
                "status": _STATUS,
                "arguments": _TEXT,
                "call_id": _TEXT,
                "name": _TEXT,
            }
        ),
    ]
}
_USAGE = _object(
    {
        "input_tokens": _COUNT,
        "input_tokens_details": _object({"cached_tokens": _COUNT, "cache_write_tokens": _COUNT}),
        "output_tokens": _COUNT,
        "output_tokens_details": _object(
            {"reasoning_tokens": _COUNT, "accepted_prediction_tokens": _COUNT, "rejected_prediction_tokens": _COUNT}
        ),
        "total_tokens": _COUNT,
    }
)
_FUNCTION = _object(
    {
        "type": {"const": "function"},
        "name": _TEXT,
        "description": _TEXT_OR_NULL,
        "parameters": {"type": "object"},
        "strict": {"type": "boolean"},
    }
)
_RESPONSE = _object(
    {
        "id": _TEXT,
        "object": {"const": "response"},
        "created_at": _COUNT,
        "completed_at": _or_null(_COUNT),
        "status": {"enum": ["in_progress", "completed", "incomplete", "failed"]},
        "background": {"const": False},
        "error": _or_null(_object({"code": _TEXT, "message": _TEXT})),
        "incomplete_details": _or_null(_object({"reason": {"const": "max_output_tokens"}})),
        "instructions": _TEXT_OR_NULL,
        "max_output_tokens": _or_null(_COUNT),
        "metadata": {"type": "object"},
        "model": _TEXT,
        "output": _list(_ITEM),
        "parallel_tool_calls": {"type": "boolean"},
        "previous_response_id": {"type": "null"},
        "prompt_cache_key": _TEXT_OR_NULL,
        "reasoning": _object({"effort": _TEXT_OR_NULL, "summary": {"type": "null"}}),
        "safety_identifier": _TEXT_OR_NULL,
        "service_tier": {"const": "default"},
        "store": {"const": False},
        "temperature": _NUMBER,
        "text": _object({"format": {"type": "object"}}),
        "tool_choice": {"type": ["string", "object"]},
        "tools": _list(_FUNCTION),
        "top_logprobs": _COUNT,
        "top_p": _NUMBER,
        "truncation": {"const": "disabled"},
        "usage": _or_null(_USAGE),
        "user": _TEXT_OR_NULL,
        "system_fingerprint": _TEXT,
        "seed": {"type": "integer"},
        "replayable": {"type": "boolean"},
    }
)


def _event(names: str, properties: Mapping[str, Schema]) -> Schema:
    types = [f"response.{name}" for name in names.split()]
    return _object({"type": {"enum": types}, "sequence_number": _COUNT, **properties})


_ITEM_PLACE: Schema = {"item_id": _TEXT, "output_index": _COUNT}
_PART_PLACE: Schema = {**_ITEM_PLACE, "content_index": _COUNT}

RESPONSE_REPLIES: Mapping[str, Schema] = {
    "ResponseReply": _RESPONSE,
    "ResponseEvent": {
        "anyOf": [
            _event("created in_progress completed incomplete failed", {"response": _RESPONSE}),
            _event("output_item.added output_item.done", {"output_index": _COUNT, "item": _ITEM}),
            _event("content_part.added content_part.done", {**_PART_PLACE, "part": _PART}),
            _event("output_text.delta", {**_PART_PLACE, "delta": _TEXT, "logprobs": _LOGPROBS}),
            _event("output_text.done", {**_PART_PLACE, "text": _TEXT, "logprobs": _LOGPROBS}),
            _event("reasoning_text.delta", {**_PART_PLACE, "delta": _TEXT}),
            _event("reasoning_text.done", {**_PART_PLACE, "text": _TEXT}),
            _event("function_call_arguments.delta", {**_ITEM_PLACE, "delta": _TEXT}),
            _event("function_call_arguments.done", {**_ITEM_PLACE, "arguments": _TEXT, "name": _TEXT}),
        ]
    },
}
