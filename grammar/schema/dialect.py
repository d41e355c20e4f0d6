"""From a parsed schema of any draft to nodes: keywords checked for their form, old spellings in the new vocabulary.

Without `$schema` the newest draft applies, and older spellings that it does not define otherwise keep their old
meaning. With `$schema`, keywords that the draft does not know are annotations, as it says.
"""

from __future__ import annotations

from typing import Any

from decodex.grammar.errors import ConstraintError
from decodex.grammar.schema.keywords import KEYWORDS, Reader
from decodex.grammar.schema.nodes import Lit, Node, refuse
from decodex.grammar.schema.references import References

__all__ = ["read_schema"]

DRAFTS = {"draft-04": 4, "draft-06": 6, "draft-07": 7, "2019-09": 2019, "2020-12": 2020}
UNSTATED = 0
SINCE = {"const": 6, "contains": 6, "propertyNames": 6, "if": 7, "then": 7, "else": 7, "dependentRequired": 2019,
         "dependentSchemas": 2019, "minContains": 2019, "maxContains": 2019, "unevaluatedItems": 2019,
         "unevaluatedProperties": 2019, "prefixItems": 2020, "$dynamicRef": 2020, "$recursiveRef": 2019}  # fmt: skip
LAST = {"dependencies": 7, "additionalItems": 2019, "$recursiveRef": 2019}


def draft_of(schema: Any) -> int:
    """The draft's number, 0 where none is stated."""
    uri = schema.get("$schema") if isinstance(schema, dict) else None
    if uri is None:
        return UNSTATED
    if not isinstance(uri, str):
        raise ConstraintError("$schema is not a string", path="$", keyword="$schema")
    bare = uri.removeprefix("http://").removeprefix("https://").removesuffix("#").removeprefix("json-schema.org/")
    if bare == "schema":
        return UNSTATED
    for name, draft in DRAFTS.items():
        if bare in (f"{name}/schema", f"draft/{name}/schema"):
            return draft
    raise ConstraintError(f"the dialect {uri!r} is not known", path="$", keyword="$schema")


def read_schema(schema: Any) -> Node:
    """The root node; every node that it reaches is complete, and no chain of in-place references closes on itself."""
    draft = draft_of(schema)
    loader = _Loader(draft, References(schema, "id" if draft == 4 else "$id"))
    root = loader.node(schema, "$")
    loader.fill_all()
    return root


class _Loader:
    """Makes nodes for schema objects, each once, without recursion."""

    def __init__(self, draft: int, references: References) -> None:
        self.draft, self.references = draft, references
        self.nodes: dict[int, Node] = {}
        self.pending: list[tuple[Node, dict[str, Any]]] = []

    def node(self, schema: Any, path: str, base: str | None = None) -> Node:
        if schema is True:
            return Node(path)
        if schema is False:
            return Node(path, [("false", None)])
        if not isinstance(schema, dict):
            raise ConstraintError("a schema is an object or a boolean", path=path)
        if id(schema) not in self.nodes:
            self.nodes[id(schema)] = Node(path)
            self.pending.append((self.nodes[id(schema)], schema))
            if base is not None:
                self.references.bases.setdefault(id(schema), base)
        return self.nodes[id(schema)]

    def fill_all(self) -> None:
        while self.pending:
            self.fill(*self.pending.pop())

    def fill(self, node: Node, schema: dict[str, Any]) -> None:
        """The parts of one schema object."""
        if "$ref" in schema and 0 < self.draft <= 7:
            node.parts.append(self.reference(node, schema, "$ref"))
            return
        base = self.references.bases.get(id(schema), "")
        reader = Reader(node, schema, lambda value, path: Lit(self.node(value, path, base)), self.draft)
        done: set[str] = set()
        for key in schema:
            if self.draft and not SINCE.get(key, 0) <= self.draft <= LAST.get(key, 9999):
                if key == "dependencies":
                    raise refuse(node, key, f"{key} is not a keyword of this draft: dependentRequired is")
                continue
            if key in ("$ref", "$dynamicRef", "$recursiveRef"):
                node.parts.append(self.reference(node, schema, key))
            elif key in KEYWORDS and KEYWORDS[key] not in done:
                done.add(KEYWORDS[key])
                getattr(reader, KEYWORDS[key])()

    def reference(self, node: Node, schema: dict[str, Any], key: str) -> tuple[str, Any]:
        reference = schema[key]
        if not isinstance(reference, str):
            raise refuse(node, key, f"{key} is not a string")
        if key != "$ref":
            raise refuse(node, key, "dynamic references are not supported")
        target, path, base = self.references.resolve(reference, schema, node.path)
        if isinstance(target, (dict, bool)):
            return "lit", Lit(self.node(target, path, base))
        raise refuse(node, key, f"{reference!r} does not point to a schema")
