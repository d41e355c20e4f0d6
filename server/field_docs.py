"""The tables of docs/server.md, written from the fields' definitions: `python -m decodex.server.field_docs FILE`."""

from __future__ import annotations

import html
import json
import pathlib
import sys
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from decodex.server.chat_request import ChatFields
from decodex.server.completion_request import CompletionFields
from decodex.server.responses_request import ResponseFields
from decodex.server.sampling import TABLE, HttpField
from decodex.server.service import Fields

__all__ = ["HEADING", "fields_markdown", "with_fields"]

HEADING = "## Fields\n"
INTRO = """
This section is written by `python -m decodex.server.field_docs docs/server.md`, from `server/sampling.py` and the
endpoints' own fields. null is the same as leaving a field out.
"""
ENDPOINTS: Mapping[str, type[Fields]] = {
    "/v1/chat/completions": ChatFields,
    "/v1/completions": CompletionFields,
    "/v1/responses": ResponseFields,
}


def fields_markdown() -> str:
    """The section."""
    passed_on = [known for known in TABLE.values() if not known.is_ignored]
    refused = [known for known in TABLE.values() if known.is_ignored and known.help.startswith("Refused: ")]
    idle = [known for known in TABLE.values() if known.is_ignored and known not in refused]
    parts = [HEADING + INTRO]
    for path, fields in ENDPOINTS.items():
        parts.append(f"Of `{path}`:\n\n{_table('field; what it says', _own(fields))}")
    shared = _table("field; what it does; values", map(_line, passed_on))
    parts.append(f"Of all three, but for `n`, which responses have not:\n\n{shared}")
    idle_rows = ((f"`{known.name}`", _text(known.help), _values(known.schema)) for known in idle)
    parts.append(f"With these values they do nothing:\n\n{_table('field; why; values', idle_rows)}")
    parts.append("Refused by name; a value that asks for nothing does nothing:\n\n" + _refused(refused))
    return "\n".join(parts)


def with_fields(page: str) -> str:
    """The page with the section as it is now, in the end."""
    return page.partition(HEADING)[0].rstrip() + "\n\n" + fields_markdown()


def _own(fields: type[Fields]) -> Iterable[tuple[str, str]]:
    for name, field in fields.model_fields.items():
        told = field.description or _parts(field.annotation)
        yield f"`{name}`" + (" (required)" if field.is_required() else ""), _text(told)


def _parts(annotation: Any) -> str:
    """What an object of fields may say."""
    [kind] = [one for one in typing.get_args(annotation) if one is not type(None)]
    return f"An object: {', '.join(kind.model_fields)}."


def _line(known: HttpField) -> tuple[str, str, str]:
    told = _text(known.help)
    if known.target != known.name:
        told += f" Sets `{known.target}`."
    return f"`{known.name}`", told, _values(known.schema)


def _refused(fields: Iterable[HttpField]) -> str:
    reasons: dict[str, list[str]] = {}
    for known in fields:
        reasons.setdefault(known.help.removeprefix("Refused: "), []).append(f"`{known.name}`")
    return "".join(f"- {', '.join(names)}: {_text(reason)}\n" for reason, names in reasons.items())


def _values(schema: Mapping[str, Any]) -> str:
    """A JSON schema in a few words."""
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"] if value is not None)
    branches = [branch for branch in schema.get("anyOf", ()) if branch.get("type") != "null"]
    if branches:
        return " or ".join(dict.fromkeys(filter(None, map(_values, branches))))
    kind = schema.get("type", "any")
    kinds = [kind] if isinstance(kind, str) else [one for one in kind if one != "null"]
    told = " or ".join({"string": "text", "array": "list"}.get(one, one) for one in kinds)
    if "items" in schema and (inner := _values(schema["items"])):
        told += f" of {inner}"
    low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
    if low is not None or high is not None:
        told += f" {_range(low, high, is_open='exclusiveMinimum' in schema)}"
    return told


def _range(low: float | None, high: float | None, *, is_open: bool) -> str:
    if low is None:
        return f"<= {_number(high)}"
    if high is None:
        return f"{'>' if is_open else '>='} {_number(low)}"
    return f"in {'(' if is_open else '['}{_number(low)}, {_number(high)}]"


def _number(value: float | None) -> str:
    return str(int(value)) if value is not None and value == int(value) else f"{value:g}"


def _text(text: str) -> str:
    return html.escape(text, False)


def _table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    columns = tuple(head.split("; "))
    first, *others = (
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in (columns, *rows)
    )
    return first + "|" + "---|" * len(columns) + "\n" + "".join(others)


if __name__ == "__main__":
    file = pathlib.Path(sys.argv[1])
    file.write_text(with_fields(file.read_text(encoding="utf-8")), encoding="utf-8")
