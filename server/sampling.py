"""One table from HTTP fields to SamplingParams: passed on, refused with a reason, or doing nothing on purpose.

Chat, completions and responses share it; docs and the OpenAPI schema are made from it. null is the same as absent.
"""

from __future__ import annotations

import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from decodex.definition import Refusal, options_of
from decodex.errors import RequestError, nearest_name
from decodex.params import SamplingParams
from decodex.server.config import ServerConfig
from decodex.server.errors import unknown_field
from decodex.server.field_schemas import bounded, schema_of
from decodex.server.field_values import (
    Read,
    json_schema,
    only,
    read_metadata,
    read_prediction,
    read_priority,
    read_salt,
    read_text,
    response_format,
)

__all__ = ["TABLE", "HttpField", "Sampling", "json_schema", "read_sampling", "response_format", "split_body"]


@dataclass(frozen=True)
class HttpField:
    """One field. `target`: the parameter that it sets; `read` makes the parameter's value of it, or refuses it."""

    name: str
    help: str
    schema: Mapping[str, Any]  # JSON schema
    target: str | None = None
    read: Read | None = None

    @property
    def is_ignored(self) -> bool:
        """Whether the field does nothing, on purpose, with every value that it lets through."""
        return self.target is None


@dataclass
class Sampling:
    """What the fields of a request ask for: keywords of SamplingParams, and which field said so."""

    values: dict[str, Any]
    names: dict[str, str] = field(default_factory=dict)  # parameter -> HTTP field, where they differ
    cache_salt: str = ""
    priority: int = 0

    def set(self, target: str, value: Any, name: str) -> None:
        """Set a parameter that the HTTP field `name` stands for."""
        if target in self.values:
            raise RequestError(name, value, f"to be absent beside {self.names.get(target, target)}")
        self.values[target] = value
        self.names[target] = name
        if name == "response_format":
            self.names["structured_outputs.json"] = "response_format.json_schema.schema"

    def params(self, config: ServerConfig) -> SamplingParams:
        """The parameters, within what the server allows. Raises RequestError that names the HTTP field."""
        try:
            params = SamplingParams(**self.values)
            _check_limits(params, config)
        except RequestError as error:
            raise self.renamed(error) from None
        return params

    def renamed(self, error: RequestError) -> RequestError:
        """The same error about the field that the client knows."""
        for target, name in sorted(self.names.items(), reverse=True):  # the longest first
            rest = error.field.removeprefix(target)
            if error.field.startswith(target) and rest[:1] in ("", ".", "[", " "):
                return RequestError(name + rest, error.got, error.expected, error.hint)
        return error


def _check_limits(params: SamplingParams, config: ServerConfig) -> None:
    if params.n > config.max_n:
        raise RequestError("n", params.n, f"at most {config.max_n} on this server")
    limit = config.max_tokens_limit
    if limit is not None and params.max_tokens is not None and params.max_tokens > limit:
        raise RequestError("max_tokens", params.max_tokens, f"at most {limit} on this server")
    for name in ("logprobs", "prompt_logprobs"):
        wanted = getattr(params, name)
        if wanted is not None and config.max_logprobs >= 0 and not 0 <= wanted <= config.max_logprobs:
            raise RequestError(name, wanted, f"at most {config.max_logprobs} on this server")


NOT_HERE = ("n", "max_tokens", "logprobs", "logits_processors")  # each endpoint has its own reading of some of these
_ANY_TEXT = {"type": "string"}
_IGNORED = (
    HttpField("user", "Who asks; does nothing.", _ANY_TEXT, read=read_text),
    HttpField("safety_identifier", "Who asks; does nothing.", _ANY_TEXT, read=read_text),
    HttpField(
        "metadata",
        "Labels; do nothing.",
        {"type": "object", "additionalProperties": _ANY_TEXT},
        read=read_metadata,
    ),
    HttpField(
        "store",
        "Nothing is stored: false.",
        {"const": False},
        read=only(False, reason="this server stores nothing"),
    ),
    HttpField(
        "service_tier",
        "There is one: auto or default.",
        {"enum": ["auto", "default"]},
        read=only("auto", "default", reason="all requests are served alike; priority orders them"),
    ),
)
_OFF = (
    HttpField("modalities", "text.", {"const": ["text"]}, read=only(["text"], reason="the model writes text")),
    HttpField(
        "verbosity",
        "medium.",
        {"const": "medium"},
        read=only("medium", reason="ask for the length in a message; max_tokens limits it"),
    ),
)
_GUIDED = "write structured_outputs: {json, regex, choice, grammar or structural_tag}, or response_format"
_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "guided_json",
            "guided_regex",
            "guided_choice",
            "guided_grammar",
            "guided_decoding_backend",
            "guided_whitespace_pattern",
        ),
        _GUIDED,
    ),
    "logits_processors": "a processor is a Python object: it goes into the engine's logits_processors",
    "truncate_prompt_tokens": "a prompt that is too long is refused, and none is shortened",
    "detokenize": "the text is always there",
    "spaces_between_special_tokens": "text is what the tokenizer makes of the tokens",
    "prompt_cache_retention": "the prefix cache keeps what fits; prompt_cache_key separates clients",
    "audio": "the model writes text",
    "web_search_options": "the server has no tools of its own",
    "functions": "write tools",
    "function_call": "write tool_choice",
    "moderation": "nothing is moderated",
    "prompt_cache_options": "the prefix cache is always on; prompt_cache_key separates clients",
    "previous_response_id": "this server stores nothing: send the whole conversation",
}


def _passed_on() -> list[HttpField]:
    hints = typing.get_type_hints(SamplingParams)
    found = []
    for option in options_of(SamplingParams):
        if option.name not in NOT_HERE:
            schema = bounded(schema_of(hints[option.name]), option.metadata["check"])
            help = option.metadata["help"]
            read = read_prediction if option.name == "prediction" else None
            found.append(HttpField(option.name, help, schema, option.name, read))
    n = next(option for option in options_of(SamplingParams) if option.name == "n")
    found.append(HttpField("n", n.metadata["help"], {"type": "integer", "minimum": 1}, "n"))
    return found


def _refused() -> list[HttpField]:
    """Fields that are known and not offered; the values of them that ask for nothing do nothing."""
    found = [HttpField(name, f"Refused: {reason}.", {"type": "null"}, None, only(reason=reason)) for name, reason in
             _REFUSED.items()]  # fmt: skip
    for name, refusal in SamplingParams.refused.items():
        if name not in _REFUSED and name != "response_format":
            found.append(_refused_parameter(name, refusal))
    return found


def _refused_parameter(name: str, refusal: Refusal) -> HttpField:
    off = [value for value in refusal.off if value is not None]
    schema = {"enum": [None, *off]}
    return HttpField(name, f"Refused: {refusal.reason}.", schema, None, only(*off, reason=refusal.reason))


_OF_THE_REQUEST = (
    HttpField(
        "prompt_cache_key",
        "Only requests with the same key share the prefix cache.",
        {"type": "string", "minLength": 1, "maxLength": 1024},
        "cache_salt",
        read_salt,
    ),
    HttpField(
        "cache_salt",
        "The same as prompt_cache_key.",
        {"type": "string", "minLength": 1, "maxLength": 1024},
        "cache_salt",
        read_salt,
    ),
    HttpField(
        "response_format",
        "text, json_object, json_schema (which is always strict) or structural_tag.",
        {
            "type": "object",
            "properties": {
                "type": {"enum": ["text", "json_object", "json_schema", "structural_tag"]},
                "json_schema": {
                    "type": "object",
                    "properties": {
                        "name": _ANY_TEXT,
                        "description": {"type": ["string", "null"]},
                        "schema": {"type": "object"},
                        "strict": {"type": ["boolean", "null"]},
                    },
                    "required": ["name", "schema"],
                    "additionalProperties": False,
                },
            },
            "required": ["type"],
        },
        "structured_outputs",
        response_format,
    ),
    HttpField("priority", "Lower is served first.", {"type": "integer"}, "priority", read_priority),
)

TABLE: Mapping[str, HttpField] = {
    each.name: each for each in (*_passed_on(), *_OF_THE_REQUEST, *_IGNORED, *_OFF, *_refused())
}


def split_body(body: Any, own: Collection[str], what: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A body's fields that an endpoint reads itself, and those of the table. Raises ApiError for any other."""
    if not isinstance(body, Mapping):
        raise RequestError("body", body, "a JSON object")
    mine: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in body.items():
        if name in own:
            mine[name] = value
        elif name in TABLE:
            others[name] = value
        else:
            hint = nearest_name(name, (*own, *TABLE))
            raise unknown_field(RequestError(name, value, f"a field of {what}", hint))
    return mine, others


def read_sampling(fields: Mapping[str, Any]) -> Sampling:
    """What the table makes of a body's fields. Raises RequestError."""
    sampling = Sampling({})
    for name, value in fields.items():
        known = TABLE[name]
        if value is None:
            continue
        if known.read is not None:
            value = known.read(name, value)
        if known.target == "priority":
            sampling.priority = value
        elif known.target == "cache_salt":
            if sampling.cache_salt:
                raise RequestError(name, value, "one of prompt_cache_key and cache_salt")
            sampling.cache_salt = value
        elif known.target is not None and value is not None:
            sampling.set(known.target, value, name)
    return sampling
