"""The process behind `check.py`: a JSON line in (a constraint and a text), a JSON line out (what is wrong, or null).

Run as a script of its own, so that nothing of the engine is imported and nothing of the grammar backends is trusted:
JSON Schema is judged by jsonschema with ECMA-262 patterns and formats, regular expressions by RE2, grammars by Earley's
algorithm over characters. No remote retrieval.
"""

# ruff: noqa: E402 (a module is kept out before the imports)
from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from typing import Any

# takes seconds to import and is needed for two formats alone: see `_is_iri`
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

import jsonschema
import jsonschema.validators
import jsonschema_specifications
import re2
import regress

MAX_MEMORY = 2 << 30  # bytes of address space
MAX_EXPONENT = 5000  # of a number that is divided exactly
LEAP = re.compile(
    r"(?:.{10}[tT])?(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>60)(?:\.[0-9]+)?"
    r"(?P<offset>[zZ]|[+-][0-9]{2}:[0-9]{2})"
)
Errors = Iterator[jsonschema.ValidationError]


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _number(text: str) -> Decimal:
    """Exactly, but for exponents beyond all use: those give the number next to zero or the largest one."""
    try:
        return Decimal(text)
    except InvalidOperation:
        mantissa, _, exponent = text.lower().partition("e")
        edge = Decimal("1e-999999999999999999" if exponent.startswith("-") else "1e999999999999999999")
        return (edge if Decimal(mantissa) else Decimal(0)).copy_sign(Decimal(mantissa))


def parse(text: str) -> Any:
    """A JSON value with exact numbers. Raises ValueError."""
    return json.loads(text, parse_float=_number, parse_constant=_reject_constant)


@lru_cache(maxsize=1024)
def _pattern(pattern: str) -> Any:
    try:
        return regress.Regex(pattern, "u")
    except regress.RegressError:  # escapes that only the older mode takes
        return regress.Regex(pattern)


def _is_integer(checker: Any, value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, Decimal) and value == value.to_integral_value())


def _check_pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Errors:
    if validator.is_type(value, "string") and _pattern(pattern).find(value) is None:
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


def _check_pattern_properties(validator: Any, patterns: Any, value: Any, schema: Any) -> Errors:
    if not validator.is_type(value, "object"):
        return
    for pattern, subschema in patterns.items():
        for key, item in value.items():
            if _pattern(pattern).find(key) is not None:
                yield from validator.descend(item, subschema, path=key, schema_path=pattern)


def _check_additional_properties(validator: Any, wanted: Any, value: Any, schema: Any) -> Errors:
    if not validator.is_type(value, "object"):
        return
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for key, item in value.items():
        if key in known or any(_pattern(pattern).find(key) is not None for pattern in patterns):
            continue
        if wanted is False:
            yield jsonschema.ValidationError(f"the property {key!r} is not allowed")
        elif wanted is not True:
            yield from validator.descend(item, wanted, path=key)


def _check_multiple_of(validator: Any, divisor: Any, value: Any, schema: Any) -> Errors:
    if not validator.is_type(value, "number"):
        return
    if abs(Decimal(value).adjusted()) > MAX_EXPONENT:
        raise ValueError("a number with a huge exponent beside multipleOf")
    if (Fraction(value) / Fraction(divisor)).denominator != 1:
        yield jsonschema.ValidationError(f"{value} is not a multiple of {divisor}")


def _is_iri(rule: str, value: Any) -> bool:
    if sys.modules.get("rfc3987_syntax") is None:
        sys.modules.pop("rfc3987_syntax", None)
    import rfc3987_syntax

    return not isinstance(value, str) or bool(
        rfc3987_syntax.is_valid_syntax(rule, "".join(map(_in_first_plane, value)))
    )


def _in_first_plane(char: str) -> str:
    """A character of the same class of RFC 3987 in the basic plane: the library knows no other plane."""
    plane, code = divmod(ord(char), 0x10000)
    if not plane or code > 0xFFFD or 0xE0000 <= ord(char) < 0xE1000:
        return char
    return "\u00e9" if plane < 15 else "\ue000"


def _is_time(name: str, plain: Any, value: Any) -> bool:
    """RFC 3339 with leap seconds, which the library's validator does not know: 23:59:60 in UTC, and only there."""
    if isinstance(value, str) and (match := LEAP.fullmatch(value)):
        hour, minute, offset = match["hour"], match["minute"], match["offset"]
        ahead = 0 if offset in "zZ" else int(offset[0] + "1") * (60 * int(offset[1:3]) + int(offset[4:]))
        if (60 * int(hour) + int(minute) - ahead) % (24 * 60) != 24 * 60 - 1:
            return False
        value = value[: match.start("second")] + "59" + value[match.end("second") :]
    return bool(plain.conforms(value, name))


def _formats(plain: Any) -> jsonschema.FormatChecker:
    formats = jsonschema.FormatChecker(())
    formats.checkers = dict(plain.checkers)
    formats.checkers["iri"] = (lambda value: _is_iri("iri", value), ())
    formats.checkers["iri-reference"] = (lambda value: _is_iri("iri_reference", value), ())
    formats.checkers["time"] = (lambda value: _is_time("time", plain, value), ())
    formats.checkers["date-time"] = (lambda value: _is_time("date-time", plain, value), ())
    formats.checkers["regex"] = (lambda value: not isinstance(value, str) or _is_pattern(value), ())
    return formats


def _is_pattern(text: str) -> bool:
    try:
        return regress.Regex(text, "u") is not None
    except regress.RegressError:
        return False


def _is_old(schema: Any) -> bool:
    """Whether a schema that names no draft is spelled as older ones are."""
    if isinstance(schema, dict):
        return isinstance(schema.get("items"), list) or "dependencies" in schema or any(map(_is_old, schema.values()))
    return isinstance(schema, list) and any(map(_is_old, schema))


@lru_cache(maxsize=256)
def _validator(schema_text: str) -> Any:
    schema = json.loads(schema_text, parse_float=_number)
    newest = jsonschema.Draft202012Validator
    is_old = not (isinstance(schema, dict) and "$schema" in schema) and _is_old(schema)
    plain = jsonschema.validators.validator_for(schema, default=jsonschema.Draft7Validator if is_old else newest)
    checker = plain.TYPE_CHECKER.redefine("integer", _is_integer)
    exact = jsonschema.validators.extend(
        plain,
        {
            "pattern": _check_pattern,
            "patternProperties": _check_pattern_properties,
            "additionalProperties": _check_additional_properties,
            "multipleOf": _check_multiple_of,
        },
        type_checker=checker,
    )
    formats = _formats(newest.FORMAT_CHECKER)
    return exact(schema, format_checker=formats, registry=jsonschema_specifications.REGISTRY)


def _nullable(grammar: list[Any]) -> set[int]:
    """Nonterminals that the empty text is derived from."""
    found: set[int] = set()
    size = -1
    while size < len(found):
        size = len(found)
        for number, alternatives in enumerate(grammar):
            if any(all(isinstance(s, int) and s in found for s in symbols) for symbols in alternatives):
                found.add(number)
    return found


def derives(grammar: list[Any], text: str) -> bool:
    """Whether a text is derived from the first nonterminal (Earley 1970; empty rules as Aycock and Horspool 2002).

    `grammar`: see productions.py. An item is (nonterminal, alternative, symbols read, where it began).
    """
    empty = _nullable(grammar)
    waiting: list[dict[int, list[tuple[int, int, int, int]]]] = []  # by place: items in front of a nonterminal
    items = {(0, number, 0, 0) for number in range(len(grammar[0]))}
    for at in range(len(text) + 1):
        here: dict[int, list[tuple[int, int, int, int]]] = {}
        waiting.append(here)
        following: set[tuple[int, int, int, int]] = set()
        todo = list(items)
        while todo:
            owner, number, read, start = item = todo.pop()
            symbols = grammar[owner][number]
            new: list[tuple[int, int, int, int]] = []
            if read == len(symbols):
                new = [(a, b, c + 1, d) for a, b, c, d in waiting[start].get(owner, ())]
            elif isinstance(symbols[read], int):
                wanted = symbols[read]
                if wanted not in here:
                    new = [(wanted, other, 0, at) for other in range(len(grammar[wanted]))]
                here.setdefault(wanted, []).append(item)
                if wanted in empty:
                    new.append((owner, number, read + 1, start))
            elif at < len(text) and any(low <= ord(text[at]) <= high for low, high in symbols[read]):
                following.add((owner, number, read + 1, start))
            for one in new:
                if one not in items:
                    items.add(one)
                    todo.append(one)
        if at == len(text):
            return any(o == 0 and s == 0 and read == len(grammar[0][n]) for o, n, read, s in items)
        items = following
        if not items:
            return False
    raise AssertionError("the last place returns")


def fault_of(kind: str, constraint: str, text: str) -> str | None:
    """What is wrong with a text under a constraint, None if nothing is. Raises whatever keeps it from being judged."""
    if kind == "choice":
        return None if text in json.loads(constraint) else "it is none of the choices"
    if kind == "regex":
        return None if re2.fullmatch(constraint, text) is not None else "it does not match the expression"
    if kind == "grammar":
        return None if derives(json.loads(constraint), text) else "it is not derived from the grammar"
    try:
        value = parse(text)
    except ValueError as error:
        return f"it is no JSON: {error}"
    if kind == "json_object":
        return None if isinstance(value, dict) else "it is no JSON object"
    fault = next(_validator(constraint).iter_errors(value), None)
    return None if fault is None else f"{fault.json_path}: {fault.message[:500]}"


def answer(line: bytes) -> dict[str, Any]:
    """The reply to one request."""
    try:
        request: Sequence[str] = json.loads(line)
        return {"fault": fault_of(*request)}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"[:500]}


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))


def _end_with(parent: int) -> None:
    """End when the parent has ended, even if a fork of it keeps the connection open."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(0)


def main() -> None:
    """Answer line by line until the connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    sys.set_int_max_str_digits(0)  # the time limit bounds them
    _limit_memory()
    threading.Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints is no reply
    replies.write(b"ready\n")
    for line in sys.stdin.buffer:
        replies.write(json.dumps(answer(line)).encode() + b"\n")


if __name__ == "__main__":
    main()
