"""Texts one step away from a valid instance that are certainly not members: what a backend that ignores a keyword lets
through although no given instance shows it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

__all__ = ["invalid_texts"]

MAX_TEXTS = 16  # of one schema
MAX_CHANGES = 400
MAX_LENGTH = 2_000  # of a text that is changed


def steps(value: Any) -> Iterator[Any]:
    """The value with one thing changed, the outermost first."""
    yield from (None, True, "text", 7, -1.5, [], {})
    if isinstance(value, dict):
        for name in value:
            yield {key: item for key, item in value.items() if key != name}
        yield {**value, "never named": {"x": [1]}}
    elif isinstance(value, list):
        yield from (value[:-1], value * 2, [*value, None], [*value, *value[-1:]])
    elif isinstance(value, str):
        yield from ("", value[:-1], value + "!", value * 40, "é" + value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from (value + 1, value - 1, value + 0.5, -value, value * 1000 + 1, str(value))


def inside(value: Any, depth: int = 0) -> Iterator[Any]:
    """One step anywhere in the value."""
    yield from steps(value)
    if depth < 4 and isinstance(value, dict):
        for name, item in value.items():
            yield from ({**value, name: changed} for changed in inside(item, depth + 1))
    elif depth < 4 and isinstance(value, list):
        for i, item in enumerate(value[:2]):
            yield from ([*value[:i], changed, *value[i + 1 :]] for changed in inside(item, depth + 1))


def escaped(value: Any) -> Iterator[str]:
    """An object whose first key comes a second time, spelt with an escape, with another value (the last one counts)."""
    if isinstance(value, dict) and value:
        name = next(iter(value))
        again = f'"\\u{ord(name[0]):04x}{json.dumps(name[1:], ensure_ascii=False)[1:]}' if name else '""'
        for other in ('"text"', "7", "{}"):
            yield f"{json.dumps(value, ensure_ascii=False)[:-1]}, {again}: {other}}}"


def invalid_texts(order: Any, values: list[Any], spelled: Any) -> list[str]:
    """Texts that jsonschema calls invalid, at most MAX_TEXTS, spread over the values' inner parts."""
    found: dict[str, None] = {}
    for value in values[:2]:
        if len(json.dumps(value)) > MAX_LENGTH:
            continue
        changes = list(islice(inside(value), MAX_CHANGES))
        changes = changes[:: max(1, len(changes) // MAX_TEXTS)]
        for text in [*escaped(value), *(spelled(order.ordered(changed)) for changed in changes)]:
            if len(found) < MAX_TEXTS and not order.validator.is_valid(json.loads(text)):
                found[text] = None
    return list(found)
