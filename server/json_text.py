"""JSON in and out: strict where a client's mistake could pass for something else, and never an error of our own."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Response

__all__ = ["JSONReply", "as_json", "as_json_in_turns", "read_json"]


_PLAIN = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def as_json(value: Any) -> bytes:
    """The compact JSON of plain values."""
    try:
        return _PLAIN.encode(value).encode()
    except UnicodeEncodeError:  # a lone surrogate, sent back in a message
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def as_json_in_turns(value: Any) -> bytes:
    """The same, for long values in a thread: other threads get their turns, which the faster encoder denies them."""
    return "".join(_PLAIN.iterencode(value)).encode()


def read_json(text: bytes) -> Any:
    """The value of a JSON text. Raises ValueError; also where an object has a key twice, one of which would be lost."""
    try:
        return json.loads(text.decode(), object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("lists and objects are nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8: {error}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"an object has the key {twice!r} twice")
    return made


class JSONReply(Response):
    """A JSON response: of plain values, or of a JSON text."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return content if isinstance(content, bytes) else as_json(content)
