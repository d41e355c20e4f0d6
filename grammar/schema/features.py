"""What a canonical schema asks of a backend, as a set of names: the keys of the routing table.

A feature is a keyword of a type, or keywords that touch each other ("string.pattern+length"). Never a whole schema.
"""

from __future__ import annotations

from typing import Any

from decodex.grammar.schema.numbers import BOUNDS, is_beyond, needs_regex

__all__ = ["BEYOND", "features_of"]

BEYOND = "beyond"  # numbers that libraries round or spell in their own ways: see `numbers.py`


def features_of(schema: Any) -> frozenset[str]:
    """The features of a canonical schema."""
    found: set[str] = set()
    stack = [schema]
    while stack:
        place = stack.pop()
        if isinstance(place, dict):
            stack += _children(place)
            _add(place, found)
        else:
            found.update({"anything"} if place else ())
    if "$ref" in found and _is_recursive(schema):
        found.add("$ref.recursive")
    return frozenset(found)


def _children(place: dict[str, Any]) -> list[Any]:
    found = [place[key] for key in ("additionalProperties", "items") if isinstance(place.get(key), dict)]
    found += [*place.get("anyOf", ()), *place.get("prefixItems", ())]
    for key in ("properties", "patternProperties", "$defs"):
        found += place.get(key, {}).values()
    return found


def _add(place: dict[str, Any], found: set[str]) -> None:
    if "anyOf" in place:
        found.add("anyOf")
        if sum("object" in _types(option) for option in place["anyOf"]) > 1:
            found.add("anyOf.objects")
    if "$ref" in place:
        found.add("$ref")
    if "enum" in place:
        found.update(f"enum.{_kind(value)}" for value in place["enum"])
        found.update({BEYOND} if is_beyond(place["enum"]) else ())
    types = _types(place)
    if len(types) > 1:
        found.add("type.list")
    for name in types:
        found.add(name)
        if name in ("integer", "number"):
            _add_number(name, place, found)
    if "string" in types:
        _add_string(place, found)
    if "array" in types:
        _add_array(place, found)
    if "object" in types:
        _add_object(place, found)


def _types(place: Any) -> list[str]:
    value = place.get("type", []) if isinstance(place, dict) else []
    return [value] if isinstance(value, str) else value


def _kind(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"


def _add_number(name: str, place: dict[str, Any], found: set[str]) -> None:
    bounds = [key for key in BOUNDS if key in place]
    found.update(f"{name}.{key}" for key in bounds)
    if len(bounds) > 1:
        found.add(f"{name}.range")
    if bounds and needs_regex(place):
        found.add(BEYOND)
    if "multipleOf" in place:
        found.add(f"{name}.multipleOf+bounds" if bounds else f"{name}.multipleOf")


def _add_string(place: dict[str, Any], found: set[str]) -> None:
    lengths = [key for key in ("minLength", "maxLength") if key in place]
    found.update(f"string.{key}" for key in lengths)
    if "pattern" in place:
        regexes = [place["pattern"], *(one["pattern"] for one in place.get("allOf", ()))]
        found.add("string.pattern+length" if lengths else "string.pattern")
        found.update({"string.patterns"} if len(regexes) > 1 else ())
        if (lengths or len(regexes) > 1) and any(map(counts_loops, regexes)):
            found.add("string.pattern+length.counted")


def counts_loops(regex: str) -> bool:
    """Whether a group with a loop inside is repeated a counted number of times: `(?:[a-z]+ ){0,9}`."""
    opened: list[int] = []
    for at, char in enumerate(regex):
        if char == "(":
            opened.append(at)
        elif char == ")" and opened:
            body = regex[opened.pop() : at]
            if regex.startswith("{", at + 1) and ("*" in body or "+" in body):
                return True
    return False


def _add_array(place: dict[str, Any], found: set[str]) -> None:
    found.update(f"array.{key}" for key in ("minItems", "maxItems", "items", "prefixItems") if key in place)
    if "prefixItems" in place:
        found.update(f"array.prefixItems+{key}" for key in ("items", "minItems", "maxItems") if key in place)


def _add_object(place: dict[str, Any], found: set[str]) -> None:
    names, other = place.get("properties", {}), place.get("additionalProperties", True)
    patterns = place.get("patternProperties", {})
    found.update(f"object.{key}" for key in ("minProperties", "maxProperties") if key in place)
    if names:
        found.add("object.properties")
        found.update({"object.required"} if place.get("required") else ())
        found.update({"object.optional"} if len(place.get("required", ())) < len(names) else ())
        found.update({"object.forbidden"} if any(value is False for value in names.values()) else ())
    if patterns:
        found.add("object.patterns" if len(patterns) == 1 else "object.patterns.several")
        found.update({"object.patterns+properties"} if names else ())
        found.update({"object.patterns+other"} if other is not False else ())
    elif other is False:
        found.add("object.closed")
    else:
        found.add("object.open" if other is True else "object.other")
        found.update({"object.properties+other"} if names and other is not True else ())


def _is_recursive(schema: dict[str, Any]) -> bool:
    """Whether a definition reaches itself."""
    edges = {f"#/$defs/{name}": _references(place) for name, place in schema.get("$defs", {}).items()}
    while edges:
        leaves = [name for name, targets in edges.items() if not targets & edges.keys()]
        if not leaves:
            return True
        for name in leaves:
            del edges[name]
    return False


def _references(place: Any) -> set[str]:
    found: set[str] = set()
    stack = [place]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            found.update({value["$ref"]} if isinstance(value.get("$ref"), str) else ())
            stack += value.values()
        elif isinstance(value, list):
            stack += value
    return found
