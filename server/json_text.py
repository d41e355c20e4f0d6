"""JSON in and out: strict where a client's mistake could pass for something else, and never an error of our own."""

from __future__ import annotations

import json
from typing import Any

from fastapi import Response

__all__ = ["JSONReply", "as_json", "as_json_in_turns", "read_json"]


MAX_DEPTH = 128  # lists and objects inside each other; schemas are bounded at half of it
TOO_DEEP = f"lists and objects are nested deeper than {MAX_DEPTH} levels"
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
    """The value of a JSON text. Raises ValueError; also where an object has a key twice, one of which would be lost,
    and for what is nested deeper than MAX_DEPTH."""
    try:
        value = json.loads(text.decode(), object_pairs_hook=_once)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8: {error}") from None
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH:
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH + 1):
        if not level:
            return
        level = [
            item
            for parent in level
            for item in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(item, dict | list)
        ]
    raise ValueError(TOO_DEEP)


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
