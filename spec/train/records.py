"""Training data: the target's own answers as token ids, one JSON object a line (`decodex distill` writes them)."""

from __future__ import annotations

import gzip
import json
import logging
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decodex.spec.train.errors import TrainingError

__all__ = ["Record", "field_of", "read_objects", "read_records"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Record:
    """One answer; `response_ids` end with the end-of-turn token where the answer ended by itself."""

    id: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    temperature: float


def read_records(paths: Sequence[Path], vocab_size: int) -> list[Record]:
    """The answers in JSONL files, plain or .gz, in order; of an id that comes again, the first, with a warning.

    A torn last line of a plain file (an interrupted `decodex distill`) is skipped; anything else that is wrong is a
    TrainingError naming file, line and field.
    """
    records: dict[str, Record] = {}
    for path in paths:
        num_left_out = 0
        for place, value in read_objects(path, may_be_torn=True):
            record = _read_record(place, value, vocab_size)
            num_left_out += records.setdefault(record.id, record) != record
        if num_left_out:
            _log.warning("%s: %d answers are left out: another answer came before with the same id", path, num_left_out)
    return list(records.values())


def read_objects(path: Path, *, may_be_torn: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """The JSON object of each line with its place "FILE:LINE"; TrainingError for anything else.

    `may_be_torn`: the last line of a plain file may end in the middle of an object, which is then left out.
    """
    is_packed = path.suffix == ".gz"
    number = 0
    try:
        with gzip.open(path) if is_packed else path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                is_torn = not line.endswith(b"\n") and line.startswith(b"{") and not is_packed
                value = _read_object(line)
                if value is not None:
                    yield f"{path}:{number}", value
                elif not (may_be_torn and is_torn):
                    raise TrainingError(f"{path}:{number}: expected a JSON object")
    except (OSError, EOFError, zlib.error) as error:
        raise TrainingError(f"{path}: can't be read after line {number} ({error})") from error


def field_of(place: str, value: Mapping[str, Any], name: str, kind: type | tuple[type, ...], expected: str) -> Any:
    """A field of an object; TrainingError where it is absent or no `kind` (a bool is no number)."""
    if name not in value:
        raise TrainingError(f"{place}: field {name} is missing")
    found = value[name]
    if not isinstance(found, kind) or isinstance(found, bool):
        raise _wrong(place, name, found, expected)
    return found


def _read_object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # not UTF-8, not JSON, or nested without end
        return None
    return value if isinstance(value, dict) else None


def _read_record(place: str, value: Mapping[str, Any], vocab_size: int) -> Record:
    temperature = float(field_of(place, value, "temperature", (int, float), "a number"))
    if not 0.0 <= temperature < math.inf:
        raise _wrong(place, "temperature", temperature, "a finite number of at least 0")
    return Record(
        id=field_of(place, value, "id", str, "a text"),
        prompt_ids=_read_ids(place, value, "prompt_ids", vocab_size),
        response_ids=_read_ids(place, value, "response_ids", vocab_size),
        temperature=temperature,
    )


def _read_ids(place: str, value: Mapping[str, Any], name: str, vocab_size: int) -> tuple[int, ...]:
    expected = f"a list of at least one token id from 0 to {vocab_size - 1}"
    ids = field_of(place, value, name, list, expected)
    if not ids:
        raise _wrong(place, name, ids, expected)
    for index, token in enumerate(ids):
        if type(token) is not int or not 0 <= token < vocab_size:
            raise _wrong(place, f"{name}[{index}]", token, f"a token id from 0 to {vocab_size - 1}")
    return tuple(ids)


def _wrong(place: str, name: str, found: object, expected: str) -> TrainingError:
    shown = repr(found)
    return TrainingError(
        f"{place}: field {name} is {shown if len(shown) <= 80 else shown[:77] + '...'}, expected {expected}"
    )
