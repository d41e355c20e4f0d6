"""What `$ref` points to: resources by their `$id`, anchors, JSON pointers. Nothing is ever retrieved."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from decodex.grammar.errors import ConstraintError

__all__ = ["References"]

# Keywords whose values are schemas, lists of them, or objects of them: where `$id` and `$anchor` mean something.
ONE = ("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then",
       "unevaluatedItems", "unevaluatedProperties")  # fmt: skip
MANY = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
NAMED = ("$defs", "definitions", "dependentSchemas", "dependencies", "patternProperties", "properties")


class References:
    """The targets inside one document. id_key: "$id", or "id" in draft 4; bases: id() of a schema -> base URI."""

    def __init__(self, document: Any, id_key: str) -> None:
        self.id_key = id_key
        self.resources: dict[str, tuple[Any, str]] = {"": (document, "$")}  # URI -> schema, path
        self.anchors: dict[tuple[str, str], tuple[Any, str]] = {}
        self.bases: dict[int, str] = {}
        self._scan(document)

    def _scan(self, document: Any) -> None:
        stack: list[tuple[Any, str, str]] = [(document, "$", "")]
        while stack:
            schema, path, base = stack.pop()
            if not isinstance(schema, dict):
                continue
            base = self._identify(schema, path, base)
            self.bases[id(schema)] = base
            for key, value in schema.items():
                if key in ONE and isinstance(value, dict):
                    stack.append((value, f"{path}.{key}", base))
                elif key in MANY and isinstance(value, list):
                    stack.extend((item, f"{path}.{key}[{i}]", base) for i, item in enumerate(value))
                elif key in NAMED and isinstance(value, dict):
                    stack.extend((item, f"{path}.{key}.{name}", base) for name, item in value.items())

    def _identify(self, schema: dict[str, Any], path: str, base: str) -> str:
        """Record the schema's identifier and anchors; its base URI."""
        name = schema.get(self.id_key)
        if isinstance(name, str) and not (self.id_key == "id" and isinstance(schema.get("$ref"), str)):
            uri, fragment = urldefrag(urljoin(base, name))
            if fragment and name.startswith("#"):
                self.anchors[base, fragment] = (schema, path)
            else:
                base = uri
                self.resources.setdefault(uri, (schema, path))
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(key), str):
                self.anchors[base, schema[key]] = (schema, path)
        return base

    def resolve(self, reference: str, schema: dict[str, Any], path: str) -> tuple[Any, str, str]:
        """Target schema, its path and the base URI of what it stands in; ConstraintError for a remote or broken one."""
        base = self.bases.get(id(schema), "")
        uri, fragment = urldefrag(urljoin(base, reference)) if not reference.startswith("#") else (base, reference[1:])
        if uri not in self.resources:
            raise ConstraintError(f"{reference!r} is outside of the schema", path=path, keyword="$ref")
        target, where = self.resources[uri]
        fragment = unquote(fragment)
        if not fragment:
            return target, where, uri
        if (uri, fragment) in self.anchors:
            return *self.anchors[uri, fragment], uri
        if not fragment.startswith("/"):
            raise ConstraintError(f"{reference!r} names no anchor of the schema", path=path, keyword="$ref")
        return self._follow(target, where, uri, fragment, (reference, path))

    def _follow(
        self, target: Any, where: str, base: str, pointer: str, source: tuple[str, str]
    ) -> tuple[Any, str, str]:
        """The value at a JSON pointer below `target`."""
        for raw in pointer[1:].split("/"):
            token = raw.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and token in target:
                target, where = target[token], f"{where}.{token}"
            elif isinstance(target, list) and token.isdigit() and int(token) < len(target):
                target, where = target[int(token)], f"{where}[{token}]"
            else:
                raise ConstraintError(f"{source[0]!r} points to nothing", path=source[1], keyword="$ref")
            base = self.bases.get(id(target), base)
        return target, where, base
