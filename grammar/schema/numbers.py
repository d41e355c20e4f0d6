"""Numbers that libraries read as doubles, or not as they stand: which they are, and regexes that say them exactly."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

__all__ = ["MAX_DIGITS", "Rounded", "first_beyond", "is_beyond", "is_bound", "spellings", "whole_regex"]

MAX_DIGITS = 1_000  # of a bound
MAX_PLAIN = 40  # characters of a small number that may be written without an exponent
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_DOUBLE = 2**53  # whole numbers up to it are doubles
_LONG = 10**18  # libraries count in 64 bits, and up to the next power of ten
_EXACT_SCALE = 22  # powers of ten that are doubles


class Rounded(float):
    """A JSON number with more digits than a double keeps: fine in a description, refused where it says something."""


def has_rounded(value: Any) -> bool:
    """Whether a value holds a number that was rounded when it was read."""
    if isinstance(value, (list, dict)):
        return any(map(has_rounded, value if isinstance(value, list) else value.values()))
    return isinstance(value, Rounded)


def is_beyond(value: Any) -> bool:
    """Whether a value holds a number that some library writes in another way than the one form, or wrongly."""
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return not -_DOUBLE <= value <= _DOUBLE
    if isinstance(value, float):
        return "e" in repr(value) or not _is_read(value)
    if isinstance(value, list):
        return any(map(is_beyond, value))
    return isinstance(value, dict) and any(map(is_beyond, value.values()))


def is_bound(value: float) -> bool:
    """Whether every library takes a bound as it is."""
    if isinstance(value, int):
        return -_DOUBLE <= value <= _DOUBLE or (-_LONG < value < _LONG and int(float(value)) == value)
    return _is_read(value) and abs(value) < _LONG


def _is_read(value: float) -> bool:
    """Whether the usual fast reading of the digits (their number times or over a power of ten) is exact."""
    _, digits, exponent = Decimal(repr(value)).as_tuple()
    assert isinstance(exponent, int)
    return int("".join(map(str, digits))) <= _DOUBLE and -_EXACT_SCALE <= exponent <= _EXACT_SCALE


def needs_regex(place: dict[str, Any]) -> bool:
    """Whether the bounds of a place's whole numbers have to be said as a regex."""
    return not all(is_bound(place[key]) for key in BOUNDS if key in place)


def spellings(value: Any) -> list[str]:
    """How a scalar is written: as Python's json does; small numbers without an exponent too."""
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and "e" in text:
        plain = format(Decimal(text), "f")
        return [text, plain] if len(plain) <= MAX_PLAIN else [text]
    return [text]


def whole_regex(low: int | None, high: int | None) -> str:
    """A regex for the whole numbers of a span, in their shortest digits. The span is not empty."""
    parts = []
    if low is None or low < 0:
        parts.append("-" + _between(1 if high is None or high >= 0 else -high, None if low is None else -low))
    if high is None or high >= 0:
        parts.append(_between(0 if low is None or low < 0 else low, high))
    return f"(?:{'|'.join(parts)})"


def _between(low: int, high: int | None) -> str:
    """Of numbers that are not negative: one alternative for each count of digits at the ends, one for all between."""
    first = len(str(low))
    if high is not None and len(str(high)) == first:
        return _same_length(str(low), str(high))
    parts = [_same_length(str(low), "9" * first)]
    last = None if high is None else len(str(high)) - 1
    if last is None or last > first:
        parts.append(f"[1-9][0-9]{{{first},{'' if last is None else last - 1}}}")
    if high is not None:
        parts.append(_same_length("1" + "0" * len(str(high)[1:]), str(high)))
    return f"(?:{'|'.join(parts)})"


def _same_length(low: str, high: str) -> str:
    """Texts of digits between two of the same length."""
    same = next((at for at, (a, b) in enumerate(zip(low, high)) if a != b), len(low))
    begin, low, high = low[:same], low[same:], high[same:]
    if not low:
        return begin
    rest = len(low) - 1
    parts, first, last = [], int(low[0]), int(high[0])
    if low[1:].strip("0"):
        parts.append(low[0] + _from(low[1:]))
        first += 1
    if high[1:].strip("9"):
        parts.append(high[0] + _to(high[1:]))
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}][0-9]{{{rest}}}")
    return f"{begin}(?:{'|'.join(parts)})"


def _from(low: str) -> str:
    """Texts of so many digits from this one on: a digit that is larger, after the same ones."""
    parts = [low[:at] + f"[{int(c) + 1}-9][0-9]{{{len(low) - at - 1}}}" for at, c in enumerate(low) if c != "9"]
    return f"(?:{'|'.join([low, *parts])})"


def _to(high: str) -> str:
    parts = [high[:at] + f"[0-{int(c) - 1}][0-9]{{{len(high) - at - 1}}}" for at, c in enumerate(high) if c != "0"]
    return f"(?:{'|'.join([high, *parts])})"


def is_wider(value: Any) -> bool:
    """Whether a value holds a number that is neither a whole one of 64 bits nor a double that is read exactly."""
    if isinstance(value, (list, dict)):
        return any(map(is_wider, value if isinstance(value, list) else value.values()))
    if isinstance(value, int):
        return not -(2**63) <= value < 2**63
    return isinstance(value, float) and not _is_read(value)


def first_beyond(schema: Any) -> tuple[str, str] | None:
    """Path and keyword of the first number that is wider than what xgrammar and outlines take exactly."""
    stack = [(schema, "$")]
    while stack:
        value, path = stack.pop()
        if isinstance(value, dict):
            if _is_enum("enum", value.get("enum")) and is_wider(value["enum"]):
                return path, "enum"
            for key in BOUNDS:
                if isinstance(value.get(key), (int, float)) and is_wider(value[key]):
                    return path, key
            stack += [(item, f"{path}.{key}") for key, item in reversed(value.items()) if not _is_enum(key, item)]
        elif isinstance(value, list):
            stack += [(item, f"{path}[{i}]") for i, item in enumerate(value)][::-1]
    return None


def _is_enum(key: str, value: Any) -> bool:
    return key == "enum" and isinstance(value, list)
