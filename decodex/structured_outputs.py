"""StructuredOutputsParams: what the output of a request must be. Owned by the user, frozen, checked on construction.

A JSON schema may come as a Pydantic model, a dataclass or a TypedDict; the output is then read back into it.
"""

from __future__ import annotations

import dataclasses
import functools
import json as json_text
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, ClassVar

from decodex.checks import Flag, OneOf
from decodex.definition import FILE_OR_TEXT, definition, option, run_checks
from decodex.errors import RequestError
from decodex.grammar.constraint import BACKENDS, KINDS, WHITESPACE, Constraint, Kind

__all__ = ["FIELD", "StructuredOutputs", "StructuredOutputsParams", "read_output"]

FIELD = "structured_outputs"
_MAX_DIGITS = 4_000  # of a whole number that is read as Python reads it
_LONG = re.compile(rf"[0-9]{{{_MAX_DIGITS}}}")


def is_schema_class(value: Any) -> bool:
    """Whether a value is a class that JSON schemas are made from: Pydantic model, dataclass, TypedDict."""
    if not isinstance(value, type):
        return False
    is_typed_dict = issubclass(value, dict) and hasattr(value, "__required_keys__")
    return is_typed_dict or dataclasses.is_dataclass(value) or hasattr(value, "model_json_schema")


@functools.lru_cache(maxsize=256)
def _adapter(cls: type) -> Any:
    import pydantic

    return pydantic.TypeAdapter(cls)


def read_output(schema: Any, text: str) -> Any:
    """The value of a JSON text: an instance of `schema` if that is a class, else plain Python values.

    Raises what the class's own validators raise.
    """
    if not is_schema_class(schema):
        return json_text.loads(text, parse_int=_whole)
    if _LONG.search(text):  # pydantic's reader stops there too
        return _adapter(schema).validate_python(json_text.loads(text, parse_int=_whole))
    return _adapter(schema).validate_json(text)


def _whole(digits: str) -> int:
    """A whole number of any length: Python's own reading stops at 4,300 digits."""
    return int(digits) if len(digits) < _MAX_DIGITS else int(Decimal(digits))


def _as_json(field: str, value: Any) -> str:
    try:
        text = json_text.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except RecursionError:
        hint = "objects and lists inside each other: 64 levels are allowed"
        raise RequestError(field, value, "a value that is not nested as deeply", hint) from None
    except UnicodeEncodeError:
        raise RequestError(field, value, "text without lone surrogates", _place_of_surrogate(value, "$")) from None
    except (TypeError, ValueError) as error:
        raise RequestError(field, value, "values that JSON has", f"{type(error).__name__}: {error}") from None
    return text


def _place_of_surrogate(value: Any, path: str) -> str:
    """The JSON path of the first text that no encoding has."""
    if isinstance(value, str):
        return path if any(0xD800 <= ord(c) <= 0xDFFF for c in value) else ""
    items = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    )
    for key, item in items:
        inner = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}"
        if found := _place_of_surrogate(key, path) or _place_of_surrogate(item, inner):
            return found.encode("utf-8", "backslashreplace").decode()
    return ""


def _text(field: str, value: Any, expected: str) -> str:
    if not isinstance(value, str) or not value:
        raise RequestError(field, value, expected)
    return _encodable(field, value)


def _encodable(field: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RequestError(field, value, "text without lone surrogates") from None
    return value


class SchemaSource:
    """A JSON schema as a mapping (a copy is kept), as JSON text, or as a class."""

    expected = "a schema as a dict or JSON text, or a Pydantic model, dataclass or TypedDict"
    off = (None,)

    def __call__(self, field: str, value: Any) -> Any:
        if value is None:
            return None
        text = self.text(field, value)
        return json_text.loads(text) if isinstance(value, Mapping) else value

    def text(self, field: str, value: Any) -> str:
        """The JSON text of the schema."""
        if is_schema_class(value):
            return _as_json(field, _schema_of_class(field, value))
        if isinstance(value, str):
            text = _text(field, value, self.expected)
            try:
                parsed = json_text.loads(text)
            except (ValueError, RecursionError) as error:
                raise RequestError(field, value, self.expected, f"it is no JSON: {error}") from None
            if not isinstance(parsed, (dict, bool)):
                raise RequestError(field, value, self.expected)
            return text
        if not isinstance(value, Mapping):
            raise RequestError(field, value, self.expected)
        return _as_json(field, value)


def _schema_of_class(field: str, cls: type) -> Any:
    try:
        schema = _adapter(cls).json_schema()
    except Exception as error:  # pydantic's own errors, and whatever a class's hooks raise
        raise RequestError(field, cls, SchemaSource.expected, f"{type(error).__name__}: {error}") from error
    _close(schema)
    return schema


def _close(schema: Any) -> None:
    """Allow a class's own fields only: a class that takes others says so with an explicit additionalProperties."""
    for node in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _close(node)
    if isinstance(schema, dict) and schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        schema.setdefault("additionalProperties", False)


class Text:
    """A text that is not empty, unless may_be_empty."""

    off = (None,)

    def __init__(self, expected: str, *, may_be_empty: bool = False) -> None:
        self.expected, self.may_be_empty = expected, may_be_empty

    def __call__(self, field: str, value: Any) -> str | None:
        if value is None:
            return None
        return "" if self.may_be_empty and value == "" else _text(field, value, self.expected)


class Choices:
    """Texts; what stands there twice counts once."""

    expected = "a list of texts"
    off = (None,)

    def __call__(self, field: str, value: Any) -> tuple[str, ...] | None:
        if value is None:
            return None
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or not value:
            raise RequestError(field, value, "a list of at least one text")
        for index, text in enumerate(value):
            if not isinstance(text, str):
                raise RequestError(f"{field}[{index}]", text, "a text")
            _encodable(f"{field}[{index}]", text)
        return tuple(dict.fromkeys(value))


class Tag:
    """A structural tag as a mapping or as JSON text; kept as JSON text."""

    expected = "a structural tag as a dict or JSON text"
    off = (None,)

    def __call__(self, field: str, value: Any) -> str | None:
        if value is None or isinstance(value, str):
            return None if value is None else _text(field, value, self.expected)
        if not isinstance(value, Mapping):
            raise RequestError(field, value, self.expected)
        return _as_json(field, value)


@definition
class StructuredOutputsParams:
    """One constraint (exactly one of the first six fields) and how it is honoured.

    All but `structural_tag` describe the whole output. Raises `RequestError` naming the field.
    """

    prefix: ClassVar[str] = f"{FIELD}."  # of the fields' names in errors

    json: Any = option(
        default=None,
        help="JSON schema that the output satisfies",
        metavar=FILE_OR_TEXT,
        check=SchemaSource(),
    )
    json_object: bool = option(default=False, help="the output is any JSON object", check=Flag())
    regex: str | None = option(
        default=None,
        help="regular expression that the whole output matches",
        check=Text("a regular expression", may_be_empty=True),
    )
    choice: tuple[str, ...] | list[str] | None = option(
        default=None, help="the output is one of these texts", metavar="TEXT", check=Choices()
    )
    grammar: str | None = option(
        default=None,
        help="context-free grammar of the output, as EBNF, GBNF or Lark",
        metavar=FILE_OR_TEXT,
        check=Text("a grammar"),
    )
    structural_tag: Any = option(
        default=None,
        help="free text with constrained parts between markers",
        metavar=FILE_OR_TEXT,
        check=Tag(),
    )
    backend: str = option(
        default="auto",
        help="library that compiles the constraint; auto takes one that honours all of it",
        choices=BACKENDS,
        check=OneOf(BACKENDS),
    )
    whitespace: str = option(
        default="spaced",
        help="JSON separators: spaced (', ' and ': '), compact, or flexible (bounded runs of whitespace)",
        choices=WHITESPACE,
        check=OneOf(WHITESPACE),
    )
    finish_within_budget: bool = option(
        default=False,
        help="when few tokens are left, allow only what can still be completed before max_tokens",
        check=Flag(),
    )

    def __post_init__(self) -> None:
        run_checks(self)
        given = [kind for kind in KINDS if getattr(self, kind) not in (None, False)]
        if len(given) != 1:
            got = " and ".join(given) if given else "no constraint"
            raise RequestError(FIELD, got, f"exactly one of {', '.join(KINDS)}")
        if given[0] in ("regex", "choice", "grammar") and self.whitespace != "spaced":
            raise RequestError(f"{FIELD}.whitespace", self.whitespace, f"to be absent: {given[0]} says it all")

    @property
    def kind(self) -> Kind:
        """The constraint's kind, which is also the name of its field."""
        [kind] = (kind for kind in KINDS if getattr(self, kind) not in (None, False))
        return kind  # type: ignore[return-value]

    @property
    def schema(self) -> Any:
        """What `CompletionOutput.parsed` is read into: the schema of a JSON constraint, None for other kinds."""
        return {} if self.json_object else self.json

    @functools.cached_property
    def constraint(self) -> Constraint:
        """The constraint as the grammar room takes it."""
        value = getattr(self, self.kind)
        if self.kind == "json":
            text = SchemaSource().text(f"{FIELD}.json", value)
        elif self.kind == "choice":
            text = json_text.dumps(value, ensure_ascii=False)
        else:
            text = "" if self.kind == "json_object" else value
        return Constraint(self.kind, text, self.backend, self.whitespace)


class StructuredOutputs:
    """StructuredOutputsParams, or a mapping of its fields."""

    expected = "StructuredOutputsParams, or a dict of its fields"
    off = (None,)

    def __call__(self, field: str, value: Any) -> StructuredOutputsParams | None:
        if value is None or isinstance(value, StructuredOutputsParams):
            return value
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise RequestError(field, value, self.expected)
        return StructuredOutputsParams(**value)
