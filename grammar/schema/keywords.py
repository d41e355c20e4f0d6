"""The keywords of one schema object, checked for their form, as parts of its node."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from decodex.grammar.errors import ConstraintError
from decodex.grammar.schema.ecma import RegexError
from decodex.grammar.schema.formats import FORMATS, NOT_REGULAR
from decodex.grammar.schema.nodes import TYPES, Lit, Members, Node, ObjectPart, key_of, refuse
from decodex.grammar.schema.numbers import has_rounded
from decodex.grammar.schema.patterns import whole_regexes

__all__ = ["KEYWORDS", "Reader"]

KEYWORDS = {
    "type": "types", "enum": "enumeration", "const": "constant",
    "minimum": "lower", "exclusiveMinimum": "lower", "maximum": "upper", "exclusiveMaximum": "upper",
    "multipleOf": "multiple", "minLength": "lengths", "maxLength": "lengths", "pattern": "pattern", "format": "formats",
    "minItems": "item_counts", "maxItems": "item_counts", "prefixItems": "arrays", "items": "arrays",
    "additionalItems": "arrays", "contains": "contains", "uniqueItems": "unique", "properties": "objects",
    "patternProperties": "objects", "additionalProperties": "objects", "required": "required",
    "minProperties": "property_counts", "maxProperties": "property_counts", "propertyNames": "names",
    "dependencies": "dependencies", "dependentRequired": "dependencies", "dependentSchemas": "dependencies",
    "allOf": "all_of", "anyOf": "any_of", "oneOf": "one_of", "not": "negation", "if": "conditional",
    "unevaluatedProperties": "unevaluated_properties", "unevaluatedItems": "unevaluated_items",
}  # fmt: skip

PROSE = frozenset({"title", "description", "$comment"})


def fraction(value: float) -> Fraction:
    """The decimal number that a JSON number spells."""
    return Fraction(value) if isinstance(value, int) else Fraction(Decimal(repr(value)))


class Reader:
    """Reads one object into `node.parts`; a method takes a group of keywords that belong together."""

    def __init__(self, node: Node, schema: dict[str, Any], child: Callable[[Any, str], Lit], draft: int) -> None:
        self.node, self.schema, self.child, self.draft = node, schema, child, draft

    def add(self, kind: str, payload: Any) -> None:
        self.node.parts.append((kind, payload))

    def wrong(self, key: str, expected: str) -> ConstraintError:
        return refuse(self.node, key, f"{key} must be {expected}")

    def sub(self, key: str) -> Lit:
        return self.child(self.schema[key], f"{self.node.path}.{key}")

    def list_of(self, key: str) -> list[Lit]:
        value = self.schema[key]
        if not isinstance(value, list) or not value:
            raise self.wrong(key, "a list of schemas, not empty")
        return [self.child(item, f"{self.node.path}.{key}[{i}]") for i, item in enumerate(value)]

    def named(self, key: str) -> dict[str, Any]:
        value = self.schema.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return value

    def strings(self, key: str, value: Any) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "a list of strings")
        return value

    def count(self, key: str) -> int | None:
        value = self.schema.get(key)
        if value is None and key not in self.schema:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0 or value != int(value):
            raise self.wrong(key, "a whole number, not negative")
        return int(value)

    def number(self, key: str) -> float | None:
        value = self.schema.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(key, "a number")
        return self.exact(key, value)  # type: ignore[no-any-return]

    def exact(self, key: str, value: Any) -> Any:
        """The value, where no number in it was rounded."""
        if has_rounded(value):
            raise refuse(self.node, key, "a number has more digits than a double keeps (17): it would be another one")
        return value

    def types(self) -> None:
        value = self.schema["type"]
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not names or not all(n in (*TYPES, "integer") for n in names):
            raise self.wrong("type", "one of the seven type names or a list of them")
        self.add("type", frozenset(names))

    def enumeration(self) -> None:
        if not isinstance(self.schema["enum"], list) or not self.schema["enum"]:
            raise self.wrong("enum", "a list that is not empty")
        self.add("enum", Members(self.exact("enum", self.schema["enum"])))

    def constant(self) -> None:
        self.add("enum", Members([self.exact("const", self.schema["const"])]))

    def lower(self) -> None:
        self.bound("minimum", "exclusiveMinimum", "low")

    def upper(self) -> None:
        self.bound("maximum", "exclusiveMaximum", "high")

    def bound(self, key: str, exclusive_key: str, kind: str) -> None:
        exclusive = self.schema.get(exclusive_key, False)
        if isinstance(exclusive, bool):  # draft 4: a flag beside the bound
            if exclusive_key in self.schema and self.draft > 4:
                raise self.wrong(exclusive_key, "a number")
            if key in self.schema:
                self.add(kind, (self.number(key), exclusive))
            return
        if self.draft == 4:
            raise self.wrong(exclusive_key, "a boolean")
        self.add(kind, (self.number(exclusive_key), True))
        if key in self.schema:
            self.add(kind, (self.number(key), False))

    def multiple(self) -> None:
        value = self.number("multipleOf")
        if value is None or value <= 0:
            raise self.wrong("multipleOf", "a number above zero")
        self.add("multiple", fraction(value))

    def lengths(self) -> None:
        for key, kind in (("minLength", "min_length"), ("maxLength", "max_length")):
            if (value := self.count(key)) is not None:
                self.add(kind, value)

    def regexes(self, key: str, pattern: str) -> tuple[str, ...]:
        try:
            return whole_regexes(pattern)
        except RegexError as error:
            raise refuse(self.node, key, f"the pattern {pattern[:200]!r} is refused: {error}") from error

    def pattern(self) -> None:
        if not isinstance(self.schema["pattern"], str):
            raise self.wrong("pattern", "a string")
        self.add("regexes", self.regexes("pattern", self.schema["pattern"]))

    def formats(self) -> None:
        name = self.schema["format"]
        if not isinstance(name, str):
            raise self.wrong("format", "a string")
        if name in NOT_REGULAR:
            self.add("blocked", ("string", refuse(self.node, "format", f"the format {name!r} is not supported")))
        elif name in FORMATS:
            self.add("regexes", FORMATS[name])

    def item_counts(self) -> None:
        for key, kind in (("minItems", "min_items"), ("maxItems", "max_items")):
            if (value := self.count(key)) is not None:
                self.add(kind, value)

    def arrays(self) -> None:
        items, prefix = self.schema.get("items"), []
        if "prefixItems" in self.schema and self.draft in (0, 2020):
            prefix = self.list_of("prefixItems")
        if isinstance(items, list):  # before 2020-12
            if self.draft == 2020 or prefix:
                raise self.wrong("items", "a schema")
            prefix = self.list_of("items") if items else []
            rest = self.sub("additionalItems") if "additionalItems" in self.schema else None
        else:
            rest = self.sub("items") if "items" in self.schema else None
        self.add("array", (tuple(prefix), rest))

    def contains(self) -> None:
        low, high = self.count("minContains"), self.count("maxContains")
        if self.draft in (6, 7):
            low = high = None
        self.add("contains", (self.sub("contains"), 1 if low is None else low, high, 0))

    def unique(self) -> None:
        if not isinstance(self.schema["uniqueItems"], bool):
            raise self.wrong("uniqueItems", "a boolean")
        if self.schema["uniqueItems"]:
            self.add("unique", None)

    def objects(self) -> None:
        path = self.node.path
        names = {k: self.child(v, f"{path}.properties.{k}") for k, v in self.named("properties").items()}
        patterns = tuple(
            (self.regexes("patternProperties", k), self.child(v, f"{path}.patternProperties.{k}"))
            for k, v in self.named("patternProperties").items()
        )
        other = self.sub("additionalProperties") if "additionalProperties" in self.schema else None
        for regexes, lit in patterns:
            if not regexes:  # it matches every name: nothing is additional
                self.add("object", ObjectPart({}, (), lit))
                other = None
        self.add("object", ObjectPart(names, tuple(p for p in patterns if p[0]), other))

    def required(self) -> None:
        if self.draft == 0 and isinstance(self.schema["required"], bool):
            raise self.wrong("required", "a list of strings (a boolean is draft 3)")
        self.add("required", self.strings("required", self.schema["required"]))

    def property_counts(self) -> None:
        for key, kind in (("minProperties", "min_properties"), ("maxProperties", "max_properties")):
            if (value := self.count(key)) is not None:
                self.add(kind, value)

    def names(self) -> None:
        self.add("names", self.sub("propertyNames"))

    def dependencies(self) -> None:
        for key in ("dependencies", "dependentRequired", "dependentSchemas"):
            for name, value in self.named(key).items():
                path = f"{self.node.path}.{key}.{name}"
                absent = ObjectPart({name: Lit(Node(path, [("false", None)]))}, (), None)
                if key != "dependentSchemas" and isinstance(value, list):
                    need: list[Any] = [("required", [name, *self.strings(key, value)])]
                    self.add("mention", [name, *value])
                elif key == "dependentRequired":
                    raise self.wrong(key, "an object of lists")
                else:
                    need = [("required", [name]), ("lit", self.child(value, path))]
                    self.add("mention", [name])
                present = [("type", frozenset({"object"})), *need]
                self.add("any", [[("object", absent)], present])

    def all_of(self) -> None:
        for lit in self.list_of("allOf"):
            self.add("lit", lit)

    def any_of(self) -> None:
        values = self.listed("anyOf")
        if values:
            self.add("enum", Members({key_of(value): value for value in values}.values()))
        else:
            self.add("any", [[("lit", lit)] for lit in self.list_of("anyOf")])

    def one_of(self) -> None:
        members = Members(self.listed("oneOf"))
        if members and len(members.keys) == len(members):  # no value is in two of them
            self.add("enum", members)
        else:
            self.add("one", self.list_of("oneOf"))

    def listed(self, key: str) -> list[Any]:
        """The values of alternatives that only list some (thousands, in schemas that programs write); or nothing."""
        values: list[Any] = []
        branches = self.schema[key]
        for branch in branches if isinstance(branches, list) else ():
            names = branch.keys() - PROSE if isinstance(branch, dict) else set()
            if names == {"const"} and self.draft != 4:
                values.append(branch["const"])
            elif names == {"enum"} and isinstance(branch["enum"], list) and branch["enum"]:
                values += branch["enum"]
            else:
                return []
        return self.exact(key, values)  # type: ignore[no-any-return]

    def negation(self) -> None:
        self.add("lit", Lit(self.sub("not").node, False))

    def conditional(self) -> None:
        test = self.sub("if")
        options: list[list[Any]] = [[("lit", test)], [("lit", Lit(test.node, False))]]
        for option, key in zip(options, ("then", "else")):
            if key in self.schema:
                option.append(("lit", self.sub(key)))
        self.add("any", options)  # without then and else too: unevaluated... sees what `if` covers

    def unevaluated_properties(self) -> None:
        self.add("unevaluated_properties", self.sub("unevaluatedProperties"))

    def unevaluated_items(self) -> None:
        self.add("unevaluated_items", self.sub("unevaluatedItems"))
