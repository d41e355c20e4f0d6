"""Readers of HTTP fields that are not parameters as they stand: read(name, value) gives the value or refuses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from decodex.definition import check_int
from decodex.errors import RequestError, nearest_name
from decodex.server.errors import unknown_field

__all__ = [
    "Read",
    "json_schema",
    "only",
    "read_metadata",
    "read_prediction",
    "read_priority",
    "read_salt",
    "read_text",
    "response_format",
]

Read = Callable[[str, Any], Any]


def read_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise RequestError(name, value, "a text")
    return value


def read_metadata(name: str, value: Any) -> Any:
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for text in value.values()):
        raise RequestError(name, value, "a mapping of texts to texts")
    return value


def only(*values: Any, reason: str) -> Read:
    """Lets through the values that ask for nothing."""

    def read(name: str, value: Any) -> Any:
        if not any(type(value) is type(known) and value == known for known in values):
            allowed = " or ".join(map(repr, values)) or "to be absent"
            raise RequestError(name, value, allowed, reason)
        return value

    return read


def read_prediction(name: str, value: Any) -> Any:
    """OpenAI's {"type": "content", "content": text or parts}; a text or token ids as they are."""
    if not isinstance(value, Mapping):
        return value
    if set(value) != {"type", "content"} or value["type"] != "content":
        raise RequestError(name, value, "the keys 'type' (which is 'content') and 'content'")
    content = value["content"]
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError(f"{name}.content", content, "a text, or a list of text parts")
    for index, part in enumerate(content):
        is_text = isinstance(part, Mapping) and set(part) == {"type", "text"} and part["type"] == "text"
        if not is_text or not isinstance(part["text"], str):
            raise RequestError(f"{name}.content[{index}]", part, 'a part {"type": "text", "text": ...}')
    return "".join(part["text"] for part in content)


def response_format(name: str, value: Any) -> dict[str, Any] | None:
    """OpenAI's response_format as the fields of structured_outputs; None for text. A schema is always honoured in full,
    whatever `strict` says."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind not in ("text", "json_object", "json_schema", "structural_tag"):
        raise RequestError(name, value, "an object of the type text, json_object, json_schema or structural_tag")
    if kind == "structural_tag":
        return {"structural_tag": dict(value)}
    _check_keys(name, value, ("type", "json_schema") if kind == "json_schema" else ("type",))
    if kind != "json_schema":
        return {"json_object": True} if kind == "json_object" else None
    inner, place = value.get("json_schema"), f"{name}.json_schema"
    if not isinstance(inner, Mapping):
        raise RequestError(place, inner, "an object with name and schema")
    return {"json": json_schema(place, inner)}


def json_schema(place: str, value: Mapping[str, Any]) -> Any:
    """The schema of {"name", "description", "schema", "strict"}."""
    _check_keys(place, value, ("name", "description", "schema", "strict"))
    if not isinstance(value.get("name"), str) or not value["name"]:
        raise RequestError(f"{place}.name", value.get("name"), "a text")
    if not isinstance(value.get("description"), str | None):
        raise RequestError(f"{place}.description", value["description"], "a text")
    if not isinstance(value.get("strict"), bool | None):
        raise RequestError(f"{place}.strict", value["strict"], "true or false")
    if not isinstance(value.get("schema"), Mapping):
        raise RequestError(f"{place}.schema", value.get("schema"), "a JSON schema")
    return value["schema"]


def _check_keys(place: str, value: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in value:
        if key not in known:
            expected = f"one of {', '.join(known)}"
            raise unknown_field(RequestError(f"{place}.{key}", value[key], expected, nearest_name(key, known)))


def read_salt(name: str, value: Any) -> str:
    text = read_text(name, value)
    if not text or len(text) > 1024:
        raise RequestError(name, value, "a text of 1 to 1024 characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(name, value, "text without lone surrogates") from None
    return text


def read_priority(name: str, value: Any) -> int:
    return check_int(name, value, -(2**31), 2**31 - 1)
