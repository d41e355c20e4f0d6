"""Schemas that apply to the same value as the schema that names them: their cycles, and what they leave unevaluated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from decodex.grammar.schema.nodes import Lit, Node, ObjectPart, Part, refuse

__all__ = ["check_cycles", "reachable", "resolve_unevaluated"]


def lits_of(part: Part) -> Iterator[Lit]:
    """Every schema that a part refers to."""
    stack: list[Any] = [part[1]]
    while stack:
        value = stack.pop()
        if isinstance(value, Lit):
            yield value
        elif isinstance(value, ObjectPart):
            stack += [value.other, *value.names.values(), *(lit for _, lit in value.patterns)]
        elif isinstance(value, (list, tuple)):
            stack += value


def same_value(parts: list[Part]) -> Iterator[Lit]:
    """The schemas among a node's parts that apply to the same value as the node."""
    for kind, payload in parts:
        if kind == "lit":
            yield payload
        elif kind == "one":
            yield from payload
        elif kind == "any":
            for option in payload:
                yield from same_value(option)


def reachable(root: Node) -> list[Node]:
    """Every node below the root, itself first."""
    found, stack = {id(root): root}, [root]
    while stack:
        for part in stack.pop().parts:
            for lit in lits_of(part):
                if id(lit.node) not in found:
                    found[id(lit.node)] = lit.node
                    stack.append(lit.node)
    return list(found.values())


def check_cycles(nodes: list[Node]) -> None:
    """ConstraintError where a schema refers to itself for the same value: it has no base to stand on."""
    done: set[int] = set()
    for start in nodes:
        if id(start) in done:
            continue
        path: dict[int, None] = {id(start): None}
        stack = [(start, same_value(start.parts))]
        while stack:
            node, edges = stack[-1]
            lit = next(edges, None)
            if lit is None:
                stack.pop()
                path.pop(id(node))
                done.add(id(node))
            elif id(lit.node) in path:
                raise refuse(lit.node, "$ref", "the schema refers to itself for the same value: the cycle has no base")
            elif id(lit.node) not in done:
                path[id(lit.node)] = None
                stack.append((lit.node, same_value(lit.node.parts)))


def resolve_unevaluated(nodes: list[Node]) -> None:
    """Replace `unevaluated...` by what it says where that does not depend on the value; a refusal elsewhere."""
    for node in nodes:
        own = [part for part in node.parts if part[0] in _KINDS.values()]
        found: list[Part] = [
            ("object", _left_properties(node, lit))
            if kind == "unevaluated_properties"
            else ("array", _left_items(node, lit))
            for kind, lit in own
        ]
        node.parts = [part for part in node.parts if part not in own] + found  # last: it names nothing new


def _adjacent(node: Node, keyword: str) -> Iterator[Part]:
    """Parts of the node and of what it refers to for the same value; a refusal where that depends on the value."""
    stack = [part for part in node.parts if part[0] != _KINDS[keyword]]
    while stack:
        kind, payload = stack.pop()
        if kind == "lit" and payload.is_positive:
            stack += payload.node.parts
        elif kind == "lit":
            if any(inner in ("object", "array", "contains") for inner, _ in _deep(payload.node)):
                raise refuse(node, keyword, f"{keyword} beside this not is not supported")
        elif kind in ("any", "one"):
            options = payload if kind == "any" else [[("lit", lit)] for lit in payload]
            inner = [part for option in options for part in option]
            if any(k in _EVALUATES[keyword] for part in inner for k, _ in _deep(Node("", [part]))):
                raise refuse(node, keyword, f"what {keyword} covers depends on the value")
        else:
            yield kind, payload


_KINDS = {"unevaluatedProperties": "unevaluated_properties", "unevaluatedItems": "unevaluated_items"}
_EVALUATES = {"unevaluatedProperties": ("object", "unevaluated_properties"),
              "unevaluatedItems": ("array", "contains", "unevaluated_items")}  # fmt: skip


def _deep(node: Node) -> Iterator[Part]:
    """All parts of a node and of what applies to the same value."""
    stack, seen = [node], {id(node)}
    while stack:
        current = stack.pop()
        yield from current.parts
        for lit in same_value(current.parts):
            if id(lit.node) not in seen:
                seen.add(id(lit.node))
                stack.append(lit.node)


def _left_properties(node: Node, lit: Lit) -> ObjectPart:
    anything = Lit(Node(node.path))
    names: dict[str, Lit] = {}
    patterns: list[tuple[tuple[str, ...], Lit]] = []
    for kind, payload in _adjacent(node, "unevaluatedProperties"):
        if kind == "unevaluated_properties" or (kind == "object" and payload.other is not None):
            return ObjectPart({}, (), None)
        if kind == "object":
            names.update(dict.fromkeys(payload.names, anything))
            patterns += [(regexes, anything) for regexes, _ in payload.patterns]
    return ObjectPart(names, tuple(patterns), lit)


def _left_items(node: Node, lit: Lit) -> tuple[tuple[Lit, ...], Lit | None]:
    longest = 0
    for kind, payload in _adjacent(node, "unevaluatedItems"):
        if kind == "contains":
            raise refuse(node, "unevaluatedItems", "what unevaluatedItems covers depends on contains")
        if kind == "unevaluated_items" or (kind == "array" and payload[1] is not None):
            return (), None
        if kind == "array":
            longest = max(longest, len(payload[0]))
    return (Lit(Node(node.path)),) * longest, lit
