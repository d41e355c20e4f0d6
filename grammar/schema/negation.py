"""The negation of a schema as alternatives: what fails one of its parts, each said positively.

What has no positive form (a pattern's complement, a property nobody names) becomes a `blocked` part: harmless where
its type is impossible anyway, a refusal where it is not.
"""

from __future__ import annotations

import re
from typing import Any

from decodex.grammar.schema.conjunction import FALSE
from decodex.grammar.schema.nodes import TYPES, Lit, Node, ObjectPart, Part, refuse

__all__ = ["negated"]

Options = list[list[Part]]


def negated(node: Node) -> Options:
    """Alternatives that together admit exactly what the node does not."""
    return [option for part in node.parts for option in _fails(part, node)]


def _only(name: str, *parts: Part) -> list[Part]:
    return [("type", frozenset({name})), *parts]


def _asked_by(node: Node) -> str:
    """The keyword that a negation comes from: oneOf and if negate their schemas too."""
    found: list[str] = re.findall(r"\.(not|oneOf|if)\b", node.path)
    return found[-1] if found else "not"


def _blocked(node: Node, name: str, keyword: str) -> Options:
    error = refuse(node, _asked_by(node), f"the negation of {keyword} is not supported")
    return [_only(name, ("blocked", (name, error)))]


def _fails(part: Part, node: Node) -> Options:
    """Alternatives that fail one part."""
    kind, payload = part
    if kind in _LEAVES:
        name, opposite = _LEAVES[kind]
        return [_only(name, (opposite, (payload[0], not payload[1])))]
    if kind in _COUNTS:
        name, opposite, step = _COUNTS[kind]
        return [_only(name, (opposite, payload + step))] if payload + step >= 0 else []
    if kind in ("false", "mention"):
        return [[]] if kind == "false" else []
    if kind == "blocked":
        return [_only(payload[0], part)]
    if kind == "enum":
        return [[("exclude", payload)]]
    if kind == "lit":
        return [[("lit", Lit(payload.node, not payload.is_positive))]]
    if kind == "any":
        return [[("any", [bad for inner in option for bad in _fails(inner, node)]) for option in payload]]
    if kind in ("type", "one", "regexes", "array", "contains", "object", "required"):
        return list(globals()[f"_fails_{kind}"](payload, node))
    keyword, name = _BLOCKED[kind]
    return _blocked(node, name, keyword)


_LEAVES = {"low": ("number", "high"), "high": ("number", "low")}
_COUNTS = {
    "min_length": ("string", "max_length", -1),
    "max_length": ("string", "min_length", 1),
    "min_items": ("array", "max_items", -1),
    "max_items": ("array", "min_items", 1),
    "min_properties": ("object", "max_properties", -1),
    "max_properties": ("object", "min_properties", 1),
}
_BLOCKED = {
    "multiple": ("multipleOf", "number"),
    "unique": ("uniqueItems", "array"),
    "names": ("propertyNames", "object"),
    "unevaluated_properties": ("unevaluatedProperties", "object"),
    "unevaluated_items": ("unevaluatedItems", "array"),
}


def _fails_type(names: frozenset[str], node: Node) -> Options:
    options: Options = []
    if "integer" in names and "number" not in names:
        options = _blocked(node, "number", "the type integer")
        names |= {"number"}
    others = frozenset(TYPES) - names
    return [[("type", others)], *options] if others else options


def _fails_one(lits: list[Lit], node: Node) -> Options:
    none: list[Part] = [("lit", Lit(lit.node, not lit.is_positive)) for lit in lits]
    return [none, *([("lit", one), ("lit", two)] for i, one in enumerate(lits) for two in lits[:i])]


def _fails_regexes(regexes: tuple[str, ...], node: Node) -> Options:
    error = refuse(node, _asked_by(node), "the negation of a pattern or format is not supported")
    return [_only("string", ("not_regex", (regex, error))) for regex in regexes]


def _opposite(lit: Lit) -> Lit:
    return Lit(lit.node, not lit.is_positive)


def _fails_array(payload: tuple[tuple[Lit, ...], Lit | None], node: Node) -> Options:
    prefix, rest = payload
    options = []
    for i, lit in enumerate(prefix):
        before = (Lit(Node(lit.node.path)),) * i
        options.append(_only("array", ("min_items", i + 1), ("array", ((*before, _opposite(lit)), None))))
    if rest is not None:
        options.append(_only("array", ("contains", (_opposite(rest), 1, None, len(prefix)))))
    return options


def _fails_contains(payload: tuple[Lit, int, int | None, int], node: Node) -> Options:
    lit, low, high, start = payload
    options = [_only("array", ("contains", (lit, 0, low - 1, start)))] if low else []
    return options + ([] if high is None else [_only("array", ("contains", (lit, high + 1, None, start)))])


def _fails_object(part: ObjectPart, node: Node) -> Options:
    options = [
        _only("object", ("required", [name]), ("object", ObjectPart({name: _opposite(lit)}, (), None)))
        for name, lit in part.names.items()
    ]
    if part.patterns:
        options += _blocked(node, "object", "patternProperties")
    if part.other is not None:
        options.append(_only("object", ("has", (part, _opposite(part.other)))))
    return options


def _fails_required(names: list[str], node: Node) -> Options:
    absent: Any = FALSE[0]
    return [_only("object", ("object", ObjectPart({name: absent}, (), None))) for name in names]
