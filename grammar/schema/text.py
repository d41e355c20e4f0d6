"""Schema text to a JSON value, under our own limits, before anything else looks at it."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

from decodex.grammar.errors import ConstraintError
from decodex.grammar.schema.numbers import Rounded

__all__ = ["MAX_BYTES", "MAX_DEPTH", "MAX_ENUM", "MAX_NODES", "MAX_REFS", "MAX_REPEAT", "parse_schema"]

MAX_BYTES = 2 << 20  # of the schema's text
MAX_DEPTH = 64  # objects and lists inside each other
MAX_NODES = 200_000  # values in the schema
MAX_ENUM = 4_096  # members of one enum
MAX_REFS = 4_096  # `$ref`s
MAX_REPEAT = 4_096  # minItems, maxItems, minProperties, maxProperties and the like
MAX_LENGTH = 1 << 20  # minLength, maxLength
MAX_SHORT = 15  # characters of a number that a double surely keeps

COUNTS = {
    "minItems": MAX_REPEAT,
    "maxItems": MAX_REPEAT,
    "minProperties": MAX_REPEAT,
    "maxProperties": MAX_REPEAT,
    "minContains": MAX_REPEAT,
    "maxContains": MAX_REPEAT,
    "minLength": MAX_LENGTH,
    "maxLength": MAX_LENGTH,
}


def parse_schema(text: str) -> Any:
    """The JSON value of a schema's text; ConstraintError where it is no schema or exceeds a limit."""
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise ConstraintError(f"the schema is larger than {MAX_BYTES} bytes", path="$")
    try:
        schema = json.loads(text, object_pairs_hook=unique_pairs, parse_constant=no_constant, parse_float=finite)
        text.encode()
    except ConstraintError:
        raise
    except RecursionError as error:
        raise ConstraintError(f"the schema is nested deeper than {MAX_DEPTH}", path="$") from error
    except ValueError as error:
        raise ConstraintError(f"the schema is not JSON: {error}", path="$") from error
    if not isinstance(schema, (dict, bool)):
        raise ConstraintError(f"a schema is an object or a boolean, not {type(schema).__name__}", path="$")
    check_limits(schema)
    return schema


def unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are all different."""
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ConstraintError(f"the key {twice!r} stands twice in one object", keyword=twice)
    return found


def no_constant(name: str) -> Any:
    raise ConstraintError(f"{name} is not JSON", path="$")


def finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ConstraintError(f"the number {digits:.40} is out of range", path="$")
    if (len(digits) > MAX_SHORT or "e" in digits or "E" in digits) and Decimal(digits) != Decimal(repr(value)):
        return Rounded(value)
    return value


def check_limits(schema: Any) -> None:
    """ConstraintError at the first value that exceeds a limit."""
    stack, num_nodes, num_refs = [(schema, "$", 1)], 0, 0
    while stack:
        value, path, depth = stack.pop()
        num_nodes += 1
        if depth > MAX_DEPTH:
            raise ConstraintError(f"the schema is nested deeper than {MAX_DEPTH}", path=path)
        if isinstance(value, list):
            stack.extend(
                (item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value) if isinstance(item, (dict, list))
            )
            num_nodes += len(value)
        elif isinstance(value, dict):
            num_refs += isinstance(value.get("$ref"), str)
            for key, item in value.items():
                check_count(key, item, path)
                if isinstance(item, (dict, list)):
                    stack.append((item, f"{path}.{key}", depth + 1))
            num_nodes += len(value)
        if num_nodes > MAX_NODES:
            raise ConstraintError(f"the schema has more than {MAX_NODES} values", path=path)
        if num_refs > MAX_REFS:
            raise ConstraintError(f"the schema has more than {MAX_REFS} references", path=path, keyword="$ref")


def check_count(key: str, item: Any, path: str) -> None:
    """ConstraintError where a count or an enum is over its limit."""
    limit = COUNTS.get(key)
    if limit is not None and isinstance(item, (int, float)) and item > limit:
        raise ConstraintError(f"{key} is {item}, the limit is {limit}", path=path, keyword=key)
    if key == "enum" and isinstance(item, list) and len(item) > MAX_ENUM:
        raise ConstraintError(f"the enum has {len(item)} members, the limit is {MAX_ENUM}", path=path, keyword=key)
