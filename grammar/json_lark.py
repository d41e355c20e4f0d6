"""JSON schemas with numbers that llguidance's own JSON compiler rounds (it keeps them as doubles), as Lark.

Only the places that lead to such a number are written out; everything else is left to the library as it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from decodex.grammar.backends.llguidance import MAX_WHITESPACE, SEPARATORS, json_with_options
from decodex.grammar.errors import ConstraintError
from decodex.grammar.pattern import Choice, Text, to_rust
from decodex.grammar.schema.numbers import BOUNDS, is_beyond, needs_regex, spellings, whole_regex
from decodex.grammar.schema.patterns import anything_but

__all__ = ["JsonPrinter"]

_NUMERIC = frozenset({*BOUNDS, "multipleOf"})


class JsonPrinter:
    """Prints a canonical schema: `start` is its right-hand side, `rules` is what that needs. prefix: of their names."""

    def __init__(self, schema: Any, whitespace: str, prefix: str = "j") -> None:
        self._whitespace, self._prefix = whitespace, prefix
        self._defs: dict[str, Any] = schema.get("$defs", {})
        self._needing = frozenset[str]()
        while (found := frozenset(name for name, place in self._defs.items() if self._needs(place))) != self._needing:
            self._needing = found
        self.rules: list[str] = []
        self._comma, self._colon = (json.dumps(sign) for sign in SEPARATORS[whitespace])
        self._gap = ""
        if whitespace == "flexible":
            run = self._terminal(rf"[\x20\x0A\x0D\x09]{{1,{MAX_WHITESPACE}}}")
            self._gap = f"{run}?"
            self._comma, self._colon = (f"{self._gap} {sign} {self._gap}" for sign in (self._comma, self._colon))
        self._targets = {name: f"{prefix}_{name}" for name in self._needing}
        self.start = self._place({key: value for key, value in schema.items() if key != "$defs"}, "$")
        for name, target in self._targets.items():
            self.rules.append(f"{target}: {self._place(self._defs[name], f'$.$defs.{name}')}")

    def _needs(self, place: Any) -> bool:
        """Whether something below a place has to be written out."""
        if not isinstance(place, dict):
            return False
        if "$ref" in place:
            return _target(place) in self._needing
        if "enum" in place:
            return is_beyond(place["enum"])
        if needs_regex(place) and "integer" in _types(place):
            return True
        return any(map(self._needs, (*place.get("anyOf", ()), *_values(place), *_items(place))))

    def _place(self, place: Any, path: str) -> str:
        if not self._needs(place):
            return self._left(place)
        if "$ref" in place:
            return self._targets[_target(place)]
        if "anyOf" in place:
            return self._either([self._place(one, f"{path}.anyOf[{i}]") for i, one in enumerate(place["anyOf"])])
        if "enum" in place:
            return self._either([self._value(value) for value in place["enum"]])
        types, parts = _types(place), []
        if "integer" in types and needs_regex(place):
            parts.append(self._terminal(whole_regex(place.get("minimum"), place.get("maximum"))))
            types.remove("integer")
            place = {key: value for key, value in place.items() if key not in _NUMERIC}
        for name, below, write in (("object", _values, self._object), ("array", _items, self._array)):
            if name in types and any(map(self._needs, below(place))):
                parts.append(write(place, path))
                types.remove(name)
        return self._either([*parts, *([self._left({**place, "type": types})] if types else [])])

    def _left(self, place: Any) -> str:
        """A place that the library says exactly."""
        place = {**place, "$defs": self._defs} if isinstance(place, dict) and self._defs else place
        return self._rule(f"%json {json.dumps(json_with_options(place, self._whitespace))}")

    def _value(self, value: Any) -> str:
        """One member of an enum."""
        if not is_beyond(value):
            return self._left({"enum": [value]})
        if isinstance(value, list):
            return self._object_or_array("[]", self._comma.join(f" {self._value(item)} " for item in value))
        if isinstance(value, dict):
            items = [f" {json.dumps(json.dumps(k, ensure_ascii=False))} {self._colon} {self._value(v)} "
                     for k, v in value.items()]  # fmt: skip
            return self._object_or_array("{}", self._comma.join(items))
        return self._terminal(to_rust(Choice(tuple(map(Text, spellings(value))))))

    def _object(self, place: dict[str, Any], path: str) -> str:
        for key in ("patternProperties", "minProperties", "maxProperties"):
            if key in place:
                reason = "it is not supported beside numbers that no double holds"
                raise ConstraintError(reason, path=path, keyword=key)
        names, other = place.get("properties", {}), place.get("additionalProperties", True)
        first, later = '""', '""'  # what may follow where nothing, and where something, stands before
        if other is not False:
            banned = {"pattern": anything_but(sorted(names))} if names else {}
            item = f"{self._left({'type': 'string', **banned})} {self._colon} {self._place(other, path)}"
            later = self._rule(f"({self._comma} {item})*")
            first = self._rule(f'{item} {later} | ""')
        for name, value in reversed(names.items()):
            if value is False:
                continue
            key = json.dumps(json.dumps(name, ensure_ascii=False), ensure_ascii=False)
            item = f"{key} {self._colon} {self._place(value, f'{path}.properties.{name}')}"
            if name in place.get("required", ()):
                first, later = self._rule(f"{item} {later}"), self._rule(f"{self._comma} {item} {later}")
            else:
                first = self._rule(f"{item} {later} | {first}")
                later = self._rule(f"({self._comma} {item})? {later}")
        return self._object_or_array("{}", first)

    def _array(self, place: dict[str, Any], path: str) -> str:
        prefix, rest = place.get("prefixItems", []), place.get("items", True)
        low, high = place.get("minItems", 0), place.get("maxItems")
        if False in prefix:  # nothing can stand there, so the array ends before
            prefix, rest = prefix[: prefix.index(False)], False
        parts = [self._place(one, f"{path}.prefixItems[{i}]") for i, one in enumerate(prefix[:high])]
        more = "" if rest is False else self._place(rest, f"{path}.items")
        later = '""'
        if more and (high is None or high > len(parts)):
            if not parts:
                one = f"{more} {self._more(more, max(0, low - 1), None if high is None else high - 1)}"
                return self._object_or_array("[]", self._rule(one if low else f'{one} | ""'))
            later = self._more(more, max(0, low - len(parts)), None if high is None else high - len(parts))
        for index, one in reversed(list(enumerate(parts))):
            item = f"{self._comma} {one} {later}" if index else f"{one} {later}"
            later = self._rule(item if index < low else f'{item} | ""')
        return self._object_or_array("[]", later)

    def _more(self, item: str, low: int, high: int | None) -> str:
        return f"({self._comma} {item}){{{low},{'' if high is None else high}}}"

    def _object_or_array(self, signs: str, content: str) -> str:
        opening, closing = json.dumps(signs[0]), json.dumps(signs[1])
        return self._rule(f"{opening} {self._gap} {content} {self._gap} {closing}")

    def _either(self, parts: Sequence[str]) -> str:
        return parts[0] if len(parts) == 1 else self._rule(" | ".join(parts))

    def _rule(self, body: str) -> str:
        name = f"{self._prefix}{len(self.rules)}"
        self.rules.append(f"{name}: {body}")
        return name

    def _terminal(self, regex: str) -> str:
        name = f"{self._prefix.upper()}_N{len(self.rules)}"
        self.rules.append(f"{name}: /{regex}/")
        return name


def _target(place: dict[str, Any]) -> str:
    name: str = place["$ref"].removeprefix("#/$defs/")
    return name


def _types(place: dict[str, Any]) -> list[str]:
    value = place.get("type", [])
    return [value] if isinstance(value, str) else list(value)


def _values(place: dict[str, Any]) -> list[Any]:
    names, patterns = place.get("properties", {}), place.get("patternProperties", {})
    return [*names.values(), *patterns.values(), place.get("additionalProperties")]


def _items(place: dict[str, Any]) -> list[Any]:
    return [*place.get("prefixItems", ()), place.get("items")]
