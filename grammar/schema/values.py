"""JSON values: equality as JSON Schema has it, the one form of numbers, and whether a schema admits a value."""

from __future__ import annotations

from typing import Any

from decodex.grammar.schema.keywords import fraction
from decodex.grammar.schema.nodes import Lit, ObjectPart, Part, key_of, refuse
from decodex.grammar.schema.patterns import matches

__all__ = ["admits", "plain", "type_of"]


def plain(value: Any) -> Any:
    """The value with whole numbers as integers."""
    if isinstance(value, float) and value.is_integer():
        return int(fraction(value))  # of the digits, not of the double: 1e23
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value


def type_of(value: Any) -> str:
    """The JSON type of a value; whole numbers are "number" too."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def admits(lit: Lit, value: Any) -> bool:
    """Whether the schema (or, for a negative one, its negation) admits the value; ConstraintError where unknown."""
    return all(_holds(part, value, lit) for part in lit.node.parts) == lit.is_positive


def _holds(part: Part, value: Any, lit: Lit) -> bool:
    kind, payload = part
    if kind == "mention":
        return True
    if kind == "blocked":
        if payload[0] == type_of(value):
            raise payload[1]
        return True
    if kind == "false":
        return False
    if kind == "type":
        name = type_of(value)
        return name in payload or (name == "number" and "integer" in payload and value == int(value))
    if kind == "enum":
        return key_of(value) in payload.keys
    if kind == "lit":
        return admits(payload, value)
    if kind == "any":
        return any(all(_holds(inner, value, lit) for inner in option) for option in payload)
    if kind == "one":
        return sum(admits(option, value) for option in payload) == 1
    if isinstance(value, bool) or value is None:
        return True
    if isinstance(value, str):
        return _string_holds(kind, payload, value)
    if isinstance(value, list):
        return _array_holds(kind, payload, value, lit)
    if isinstance(value, dict):
        return _object_holds(kind, payload, value, lit)
    return _number_holds(kind, payload, value)


def _number_holds(kind: str, payload: Any, value: float) -> bool:
    if kind == "low":
        return bool(value > payload[0] if payload[1] else value >= payload[0])
    if kind == "high":
        return bool(value < payload[0] if payload[1] else value <= payload[0])
    return kind != "multiple" or (fraction(value) / payload).denominator == 1


def _string_holds(kind: str, payload: Any, value: str) -> bool:
    if kind == "min_length":
        return len(value) >= payload  # type: ignore[no-any-return]
    if kind == "max_length":
        return len(value) <= payload  # type: ignore[no-any-return]
    return kind != "regexes" or all(matches(regex, value) for regex in payload)


def _array_holds(kind: str, payload: Any, value: list[Any], lit: Lit) -> bool:
    if kind == "min_items":
        return len(value) >= payload  # type: ignore[no-any-return]
    if kind == "max_items":
        return len(value) <= payload  # type: ignore[no-any-return]
    if kind == "unique":
        return len(set(map(key_of, value))) == len(value)
    if kind == "contains":
        found = sum(admits(payload[0], item) for item in value[payload[3] :])
        return found >= payload[1] and (payload[2] is None or found <= payload[2])
    if kind == "unevaluated_items":
        raise refuse(lit.node, "unevaluatedItems", "unevaluatedItems is not supported here")
    if kind != "array":
        return True
    prefix, rest = payload
    return all(admits(schema, item) for schema, item in zip(prefix, value)) and (
        rest is None or all(admits(rest, item) for item in value[len(prefix) :])
    )


def _object_holds(kind: str, payload: Any, value: dict[str, Any], lit: Lit) -> bool:
    if kind == "required":
        return all(name in value for name in payload)
    if kind == "min_properties":
        return len(value) >= payload  # type: ignore[no-any-return]
    if kind == "max_properties":
        return len(value) <= payload  # type: ignore[no-any-return]
    if kind == "names":
        return all(admits(payload, name) for name in value)
    if kind == "unevaluated_properties":
        raise refuse(lit.node, "unevaluatedProperties", "unevaluatedProperties is not supported here")
    if kind != "object":
        return True
    return all(admits(schema, item) for name, item in value.items() for schema in schemas_of(payload, name))


def schemas_of(part: ObjectPart, name: str) -> list[Lit]:
    """What an object's schema says of the value at `name`."""
    found = [part.names[name]] if name in part.names else []
    found += [lit for regexes, lit in part.patterns if all(matches(regex, name) for regex in regexes)]
    return found if found or part.other is None else [part.other]
