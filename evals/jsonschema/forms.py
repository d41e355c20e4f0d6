"""The one JSON form of an instance: keys in the order in which its schema names them, `", "` and `": "`, integers
without fraction, shortest escapes.

Independent of the rewriting under test: it walks the original schema and asks jsonschema which alternatives hold.
Order of an object's keys: described by schemas that apply whatever the value (document order, `allOf` and `$ref` in
place), then by the alternatives that the object satisfies, then merely mentioned, then those that a pattern covers,
then the others as they come. A value that an enum lists is written as the enum does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import jsonschema_specifications
import referencing.exceptions
import regress
from jsonschema.protocols import Validator

__all__ = ["KeyOrder", "plain", "spelled", "validator_of"]

CHOICES = ("anyOf", "oneOf")
OWN = ("properties", "patternProperties", "additionalProperties")
LIMIT = 40  # schemas inside each other before the walk stops


def validator_of(schema: Any) -> Validator:
    """jsonschema's validator of the schema's own draft: formats are assertions, patterns are ECMA-262's."""
    cls = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    if isinstance(schema, dict) and "$schema" not in schema and _is_old(schema):
        cls = jsonschema.Draft7Validator
    cls = jsonschema.validators.extend(cls, {"pattern": _pattern, "patternProperties": _pattern_properties})
    checker = jsonschema.FormatChecker()
    checker.checkers = dict(jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers)
    return cls(schema, format_checker=checker, registry=jsonschema_specifications.REGISTRY)


def _is_old(schema: Any) -> bool:
    if isinstance(schema, dict):
        return isinstance(schema.get("items"), list) or "dependencies" in schema or any(map(_is_old, schema.values()))
    return isinstance(schema, list) and any(map(_is_old, schema))


def found_in(pattern: str, text: str) -> bool:
    """Whether an ECMA-262 pattern is found in the text."""
    try:
        return regress.Regex(pattern, "u").find(text) is not None
    except regress.RegressError:
        return regress.Regex(pattern).find(text) is not None


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    if isinstance(instance, str) and not found_in(pattern, instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if isinstance(instance, dict):
        for pattern, inner in patterns.items():
            for key, value in instance.items():
                if found_in(pattern, key):
                    yield from validator.descend(value, inner, path=key, schema_path=pattern)


def plain(value: Any) -> Any:
    """The value with whole numbers as integers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def spelled(value: Any) -> str:
    """The text of a value whose keys are in order."""
    return json.dumps(plain(value), ensure_ascii=False)


class KeyOrder:
    """Orders the keys of instances of one schema."""

    def __init__(self, schema: Any) -> None:
        self.validator: Any = validator_of(schema)
        self.schema = schema

    def ordered(self, value: Any) -> Any:
        """The value with the keys of every object in the form's order."""
        try:
            return self._value(value, [self.validator], 0)
        except (RecursionError, referencing.exceptions.Unresolvable, jsonschema.exceptions._WrappedReferencingError):
            return value

    def _value(self, value: Any, validators: list[Any], depth: int) -> Any:
        if depth > LIMIT or not isinstance(value, (dict, list)):
            return value
        schemas = self._closure(value, validators, depth)
        for _, schema in schemas:
            for member in schema.get("enum", [schema["const"]] if "const" in schema else []):
                if json.dumps(plain(member), sort_keys=True) == json.dumps(plain(value), sort_keys=True):
                    return member
        if isinstance(value, list):
            return [self._value(item, self._items(schemas, i), depth + 1) for i, item in enumerate(value)]
        return {
            key: self._value(value[key], self._properties(schemas, key), depth + 1)
            for key in self._keys(value, schemas)
        }

    def _closure(self, value: Any, validators: list[Any], depth: int) -> list[tuple[Any, dict[str, Any]]]:
        """Every schema that applies to the value itself: first those that always do, then satisfied alternatives."""
        found: list[tuple[Any, dict[str, Any]]] = []
        choices: list[tuple[Any, dict[str, Any]]] = []
        stack: list[tuple[Any, bool]] = [(validator, False) for validator in validators[::-1]]
        while stack or choices:
            if not stack:
                stack = [(one, False) for one in self._satisfied(value, *choices.pop(0))[::-1]]
                continue
            validator, is_open = stack.pop()
            schema = validator.schema
            if not isinstance(schema, dict) or len(found) > 400:
                continue
            if is_open:  # what stands in place before it is done
                found.append((validator, schema))
                continue
            choices.append((validator, schema))
            stack += self._in_place(validator, schema)[::-1]
        return found

    def _in_place(self, validator: Any, schema: dict[str, Any]) -> list[tuple[Any, bool]]:
        """The schema's own keywords (True) between what it refers to, in document order."""
        found: list[tuple[Any, bool]] = []
        for key, item in schema.items():
            if key == "$ref":
                resolved = validator._resolver.lookup(item)
                found.append((validator.evolve(schema=resolved.contents, _resolver=resolved.resolver), False))
            elif key == "allOf":
                found += [(self._at(validator, one), False) for one in item]
            elif key in OWN and (validator, True) not in found:
                found.append((validator, True))
        return found if (validator, True) in found else [*found, (validator, True)]

    def _at(self, validator: Any, schema: Any) -> Any:
        return validator.evolve(schema=schema)

    def _satisfied(self, value: Any, validator: Any, schema: dict[str, Any]) -> list[Any]:
        found = []
        for key, item in schema.items():
            if key in CHOICES:
                found += [v for one in item if (v := self._at(validator, one)).is_valid(value)]
            elif key == "if":
                holds = self._at(validator, item).is_valid(value)
                names = ("if", "then") if holds else ("else",)
                found += [self._at(validator, schema[name]) for name in names if name in schema]
            elif key in ("dependentSchemas", "dependencies") and isinstance(value, dict):
                found += [
                    self._at(validator, one) for name, one in item.items() if name in value and isinstance(one, dict)
                ]
        return found

    def _keys(self, value: dict[str, Any], schemas: list[tuple[Any, dict[str, Any]]]) -> list[str]:
        names = [name for _, schema in schemas for name in schema.get("properties", {})]
        for validator, schema in schemas:
            names += mentioned(schema)
            if "propertyNames" in schema:
                inner = self._closure("", [self._at(validator, schema["propertyNames"])], 0)
                names += [name for _, one in inner for name in one.get("enum", ()) if isinstance(name, str)]
        for _, schema in schemas:
            patterns = schema.get("patternProperties", {})
            names += [key for key in value if any(found_in(pattern, key) for pattern in patterns)]
        return [key for key in dict.fromkeys([*names, *value]) if key in value]

    def _properties(self, schemas: list[tuple[Any, dict[str, Any]]], key: str) -> list[Any]:
        found = []
        for validator, schema in schemas:
            inner = [schema["properties"][key]] if key in schema.get("properties", {}) else []
            inner += [one for p, one in schema.get("patternProperties", {}).items() if found_in(p, key)]
            if not inner and "additionalProperties" in schema:
                inner = [schema["additionalProperties"]]
            found += [self._at(validator, one) for one in inner]
        return found

    def _items(self, schemas: list[tuple[Any, dict[str, Any]]], index: int) -> list[Any]:
        found = []
        for validator, schema in schemas:
            items = schema.get("items")
            prefix = items if isinstance(items, list) else schema.get("prefixItems", [])
            rest = schema.get("additionalItems") if isinstance(items, list) else items
            if index < len(prefix):
                found.append(self._at(validator, prefix[index]))
            elif rest is not None:
                found.append(self._at(validator, rest))
        return found


def mentioned(schema: dict[str, Any]) -> list[str]:
    """Names that a schema mentions without describing them, its unsatisfied alternatives' names last."""
    names: list[str] = []
    for key in ("dependencies", "dependentRequired", "dependentSchemas"):
        for name, needed in schema.get(key, {}).items():
            names += [name, *(needed if isinstance(needed, list) else [])]
    names += schema.get("required", []) if isinstance(schema.get("required"), list) else []
    for key in ("oneOf", "anyOf", "not", "if"):
        inner = schema.get(key, [])
        for one in inner if isinstance(inner, list) else [inner]:
            if isinstance(one, dict):
                names += [*one.get("properties", {}), *mentioned(one)]
    return names
