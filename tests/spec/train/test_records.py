"""Answers are read as they were written, and what is wrong with a file is named by line and field."""

from __future__ import annotations

import gzip
import json
import pathlib
from typing import Any

import pytest

from decodex.spec.train.errors import TrainingError
from decodex.spec.train.records import Record, read_records

VOCAB = 12
GOOD: dict[str, Any] = {"id": "a", "prompt_ids": [1, 2], "response_ids": [3, 11], "temperature": 0.7}


def write(path: pathlib.Path, *values: object, end: str = "\n") -> pathlib.Path:
    text = "\n".join(value if isinstance(value, str) else json.dumps(value) for value in values) + end
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_files_are_read_in_order_and_the_first_of_an_id_wins(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = write(tmp_path / "a.jsonl", {**GOOD, "source": "x"}, {**GOOD, "id": "b", "temperature": 0})
    packed = write(tmp_path / "b.jsonl.gz", {**GOOD, "response_ids": [5]}, {**GOOD, "id": "c", "prompt_ids": [0]})
    assert read_records([plain, packed], VOCAB) == [
        Record("a", (1, 2), (3, 11), 0.7),
        Record("b", (1, 2), (3, 11), 0.0),
        Record("c", (0,), (3, 11), 0.7),
    ]
    assert caplog.messages == [f"{packed}: 1 answers are left out: another answer came before with the same id"]
    assert [record.response_ids for record in read_records([packed, plain], VOCAB)] == [(5,), (3, 11), (3, 11)]


def test_only_a_torn_last_line_is_left_out(tmp_path: pathlib.Path) -> None:
    """However much of it was written; whole but for the line's end, it counts."""
    text = json.dumps({**GOOD, "id": "b"})
    for cut in range(1, len(text) + 1):
        torn = write(tmp_path / "a.jsonl", GOOD, text[:cut], end="")
        assert [record.id for record in read_records([torn], VOCAB)] == (["a", "b"] if cut == len(text) else ["a"])


def test_an_empty_file_has_no_answers(tmp_path: pathlib.Path) -> None:
    assert read_records([write(tmp_path / "a.jsonl", end="")], VOCAB) == []


LIST = "a list of at least one token id from 0 to 11"
WRONG: dict[str, tuple[object, str]] = {
    "torn in the middle": ('{"id": "a", "prom', "expected a JSON object"),
    "blank": ("", "expected a JSON object"),
    "no object": ([1], "expected a JSON object"),
    "deep": ("[" * 100_000, "expected a JSON object"),
    "no id": ({k: v for k, v in GOOD.items() if k != "id"}, "field id is missing"),
    "id": ({**GOOD, "id": 3}, "field id is 3, expected a text"),
    "no answer": ({**GOOD, "response_ids": []}, f"field response_ids is [], expected {LIST}"),
    "text": ({**GOOD, "prompt_ids": "ab"}, f"field prompt_ids is 'ab', expected {LIST}"),
    "beyond": ({**GOOD, "response_ids": [3, 12]}, "field response_ids[1] is 12, expected a token id from 0 to 11"),
    "below": ({**GOOD, "prompt_ids": [-1]}, "field prompt_ids[0] is -1, expected a token id from 0 to 11"),
    "bool": ({**GOOD, "prompt_ids": [True]}, "field prompt_ids[0] is True, expected a token id"),
    "fraction": ({**GOOD, "prompt_ids": [1.0]}, "field prompt_ids[0] is 1.0, expected a token id"),
    "no temperature": ({**GOOD, "temperature": None}, "field temperature is None, expected a number"),
    "bool temperature": ({**GOOD, "temperature": True}, "field temperature is True, expected a number"),
    "temperature": ({**GOOD, "temperature": -1}, "field temperature is -1.0, expected a finite number of at least 0"),
    "NaN": ('{"id": "b", "temperature": NaN}', "field temperature is nan, expected a finite number of at least 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named(tmp_path: pathlib.Path, case: str) -> None:
    line, message = WRONG[case]
    path = write(tmp_path / "a.jsonl", GOOD, line, GOOD)
    with pytest.raises(TrainingError) as error:
        read_records([path], VOCAB)
    assert str(error.value).startswith(f"{path}:2: {message}")


def test_a_packed_file_can_not_be_torn(tmp_path: pathlib.Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", GOOD, '{"id": "b', end="")
    with pytest.raises(TrainingError, match=r"a.jsonl.gz:2: expected a JSON object"):
        read_records([path], VOCAB)
    whole = write(path, *[{**GOOD, "id": str(i), "prompt_ids": [i % 7, i % 11]} for i in range(500)]).read_bytes()
    for damaged in (whole[: len(whole) // 2], b"junk", whole[:60] + b"\xff" * 60 + whole[120:]):
        path.write_bytes(damaged)
        with pytest.raises(TrainingError, match=r"a.jsonl.gz"):
            read_records([path], VOCAB)


def test_a_missing_file_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(TrainingError, match=r"none.jsonl: can't be read"):
        read_records([tmp_path / "none.jsonl"], VOCAB)


def test_the_answers_of_the_demo_model_are_read(repository: pathlib.Path) -> None:
    path = repository.parent / "shared/data/distill/smollm2-135m.jsonl.gz"
    if not path.exists():
        pytest.skip("the answers are not there (../shared/data)")
    records = read_records([path], 49_152)
    assert len(records) == 4608
    assert sum(len(record.response_ids) for record in records) > 700_000
