"""Structural tags: free text in which markers begin parts that follow a schema, a regex or a grammar.

Two descriptions are read, both known from xgrammar: {"structures": [{"begin", "schema", "end"}], "triggers": [...]},
and {"format": {"type": ...}} with the types const_string, json_schema, regex, grammar, any_text, tag, sequence, or,
triggered_tags and tags_with_separator. Whatever else is found is refused with its path.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from decodex.grammar.ebnf import Rules, is_ebnf, parse_ebnf
from decodex.grammar.errors import ConstraintError
from decodex.grammar.forms import Json, WholeText
from decodex.grammar.inline import inlined
from decodex.grammar.limits import MAX_NESTING, check_size, check_text
from decodex.grammar.regexes import parse_regex
from decodex.grammar.schema.prepare import check_backend, prepare_schema

__all__ = ["AnyText", "Const", "Either", "Item", "Separated", "Sequence", "Tag", "Triggered", "parse_tags"]

_MAX_TAGS = 1_000
_MAX_INLINED = 2_000


@dataclass(frozen=True)
class Const:
    """Exactly this text; special tokens may be spelt in it."""

    text: str


@dataclass(frozen=True)
class AnyText:
    """Free text, up to the marker that follows it."""


@dataclass(frozen=True)
class Tag:
    """A beginning, a content and an end."""

    begin: str
    content: Item
    end: str


@dataclass(frozen=True)
class Sequence:
    """One after the other."""

    items: tuple[Item, ...]


@dataclass(frozen=True)
class Either:
    """Any one of them."""

    items: tuple[Item, ...]


@dataclass(frozen=True)
class Triggered:
    """Free text; where a trigger appears in it, one of the tags that begin with it must follow."""

    triggers: tuple[str, ...]
    tags: tuple[Tag, ...]
    at_least_one: bool
    stop_after_first: bool


@dataclass(frozen=True)
class Separated:
    """Tags one after the other, a separator between them, and no free text."""

    tags: tuple[Tag, ...]
    separator: str
    at_least_one: bool
    stop_after_first: bool


Item = Const | AnyText | Json | WholeText | Rules | Tag | Sequence | Either | Triggered | Separated


def parse_tags(text: str, whitespace: str = "spaced") -> Item:
    """The item that a JSON description stands for; ConstraintError names the path of what is wrong."""
    check_text(text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConstraintError(f"the structural tag is not JSON: {error}") from None
    reader = _Reader(whitespace)
    if not isinstance(value, dict):
        raise ConstraintError("expected a JSON object", path="$")
    if value.get("type", "structural_tag") != "structural_tag":
        raise ConstraintError(f"expected the type 'structural_tag', got {value['type']!r}", path="$.type")
    if "format" in value:
        reader.check_keys(value, "$", {"type", "format"}, set())
        return reader.item(value["format"], "$.format")
    return reader.structures(value)


class _Reader:
    """Reads items; every fault names its path."""

    def __init__(self, whitespace: str) -> None:
        self._whitespace = whitespace
        self._num_items = 0

    def structures(self, value: dict[str, Any]) -> Item:
        """The older description."""
        self.check_keys(value, "$", {"type", "structures", "triggers"}, {"structures", "triggers"})
        tags = []
        for index, one in enumerate(self._list(value["structures"], "$.structures")):
            path = f"$.structures[{index}]"
            self.check_keys(one, path, {"begin", "schema", "end"}, {"begin", "schema", "end"})
            begin, end = self._text(one, "begin", path), self._text(one, "end", path)
            tags.append(Tag(begin, self._schema(one["schema"], f"{path}.schema"), end))
        return self._triggered(value["triggers"], tuple(tags), "$", False, False)

    def item(self, value: Any, path: str) -> Item:
        """An item of the newer description, by its type."""
        self._num_items += 1
        check_size("parts of a structural tag", self._num_items, _MAX_TAGS)
        if path.count(".") > MAX_NESTING:
            raise ConstraintError(f"nested more than {MAX_NESTING} deep", path=path)
        kind = value.get("type") if isinstance(value, dict) else None
        read = getattr(self, f"_read_{kind}", None) if isinstance(kind, str) else None
        if read is None:
            raise ConstraintError(f"a part of the type {kind!r} is not supported", path=path)
        found: Item = read(value, path)
        return found

    def check_keys(self, value: Any, path: str, known: set[str], required: set[str]) -> None:
        """An object with these keys and no others."""
        if not isinstance(value, dict):
            raise ConstraintError("expected a JSON object", path=path)
        for key in value:
            if key not in known:
                raise ConstraintError(f"unknown key {key!r}, expected one of {', '.join(sorted(known))}", path=path)
        for key in sorted(required):
            if key not in value:
                raise ConstraintError(f"{key!r} is missing", path=path)

    def _read_const_string(self, value: dict[str, Any], path: str) -> Item:
        self.check_keys(value, path, {"type", "value"}, {"value"})
        return Const(self._text(value, "value", path))

    def _read_any_text(self, value: dict[str, Any], path: str) -> Item:
        self.check_keys(value, path, {"type"}, set())
        return AnyText()

    def _read_json_schema(self, value: dict[str, Any], path: str) -> Item:
        self.check_keys(value, path, {"type", "json_schema", "style"}, {"json_schema"})
        if value.get("style", "json") != "json":
            raise ConstraintError("only the style 'json' is supported", path=f"{path}.style")
        return self._schema(value["json_schema"], f"{path}.json_schema")

    def _read_regex(self, value: dict[str, Any], path: str) -> Item:
        self.check_keys(value, path, {"type", "pattern"}, {"pattern"})
        with _at(f"{path}.pattern"):
            return WholeText(parse_regex(self._text(value, "pattern", path)))

    def _read_grammar(self, value: dict[str, Any], path: str) -> Item:
        self.check_keys(value, path, {"type", "grammar"}, {"grammar"})
        text = self._text(value, "grammar", path)
        if not is_ebnf(text):
            raise ConstraintError("expected EBNF (a rule 'root ::= ...')", path=f"{path}.grammar")
        with _at(f"{path}.grammar"):
            rules = parse_ebnf(text)
        pattern = inlined(rules, _MAX_INLINED)
        return rules if pattern is None else WholeText(pattern)

    def _read_tag(self, value: dict[str, Any], path: str) -> Tag:
        self.check_keys(value, path, {"type", "begin", "content", "end"}, {"begin", "content", "end"})
        content = self.item(value["content"], f"{path}.content")
        return Tag(self._text(value, "begin", path), content, self._text(value, "end", path))

    def _read_sequence(self, value: dict[str, Any], path: str) -> Item:
        return Sequence(self._items(value, path))

    def _read_or(self, value: dict[str, Any], path: str) -> Item:
        return Either(self._items(value, path))

    def _read_triggered_tags(self, value: dict[str, Any], path: str) -> Item:
        known = {"type", "triggers", "tags", "at_least_one", "stop_after_first"}
        self.check_keys(value, path, known, {"triggers", "tags"})
        first, stop = self._flag(value, "at_least_one", path), self._flag(value, "stop_after_first", path)
        return self._triggered(value["triggers"], self._tags(value, path), path, first, stop)

    def _read_tags_with_separator(self, value: dict[str, Any], path: str) -> Item:
        known = {"type", "separator", "tags", "at_least_one", "stop_after_first"}
        self.check_keys(value, path, known, {"separator", "tags"})
        first, stop = self._flag(value, "at_least_one", path), self._flag(value, "stop_after_first", path)
        return Separated(self._tags(value, path), self._text(value, "separator", path), first, stop)

    def _triggered(self, triggers: Any, tags: tuple[Tag, ...], path: str, first: bool, stop: bool) -> Item:
        texts = self._list(triggers, f"{path}.triggers")
        for index, trigger in enumerate(texts):
            place = f"{path}.triggers[{index}]"
            if not isinstance(trigger, str) or not trigger:
                raise ConstraintError("expected a text that is not empty", path=place)
            if any(other != trigger and isinstance(other, str) and other in trigger for other in texts):
                raise ConstraintError(f"the trigger {trigger!r} holds another trigger", path=place)
            if not any(tag.begin.startswith(trigger) for tag in tags):
                raise ConstraintError(f"no tag begins with the trigger {trigger!r}", path=place)
        for tag in tags:
            if not any(tag.begin.startswith(trigger) for trigger in texts):
                raise ConstraintError(f"the beginning {tag.begin!r} starts with no trigger", path=path)
        return Triggered(tuple(dict.fromkeys(texts)), tags, first, stop)

    def _tags(self, value: dict[str, Any], path: str) -> tuple[Tag, ...]:
        tags = []
        for index, one in enumerate(self._list(value["tags"], f"{path}.tags")):
            tags.append(self._read_tag(one, f"{path}.tags[{index}]"))
        return tuple(tags)

    def _items(self, value: dict[str, Any], path: str) -> tuple[Item, ...]:
        self.check_keys(value, path, {"type", "elements"}, {"elements"})
        elements = self._list(value["elements"], f"{path}.elements")
        return tuple(self.item(one, f"{path}.elements[{index}]") for index, one in enumerate(elements))

    def _schema(self, value: Any, path: str) -> Json:
        with _at(path):
            prepared = prepare_schema(value if isinstance(value, str) else json.dumps(value))
            check_backend(prepared, "llguidance")
        return Json(prepared.schema, self._whitespace, prepared.is_beyond)

    def _list(self, value: Any, path: str) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise ConstraintError("expected a list with at least one element", path=path)
        check_size("elements", len(value), _MAX_TAGS)
        return value

    def _text(self, value: dict[str, Any], key: str, path: str) -> str:
        if not isinstance(value[key], str):
            raise ConstraintError(f"expected text, got {type(value[key]).__name__}", path=f"{path}.{key}")
        check_text(value[key])
        return str(value[key])

    def _flag(self, value: dict[str, Any], key: str, path: str) -> bool:
        if not isinstance(value.get(key, False), bool):
            raise ConstraintError("expected true or false", path=f"{path}.{key}")
        return bool(value.get(key, False))


class _at:
    """Puts the path of a part in front of the path of a fault inside it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ConstraintError):
            inner = error.path.removeprefix("$")
            raise ConstraintError(error.reason, path=self._path + inner, keyword=error.keyword) from None
