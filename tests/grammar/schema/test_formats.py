"""Formats against the official test suite, where the data sets are."""

from __future__ import annotations

import json
import pathlib

import pytest

from decodex.grammar.schema.formats import FORMATS
from decodex.grammar.schema.patterns import matches


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_format_against_the_official_suite(name: str, repository: pathlib.Path) -> None:
    folder = repository.parent / "shared" / "data" / "json_schema_test_suite" / "tests" / "draft2020-12"
    if not folder.exists():
        pytest.skip("the JSON Schema test suite is not there (../shared/data)")
    groups = json.loads((folder / "optional" / "format" / f"{name}.json").read_text())
    for test in (test for group in groups for test in group["tests"] if isinstance(test["data"], str)):
        assert all(matches(regex, test["data"]) for regex in FORMATS[name]) == test["valid"], test


@pytest.mark.parametrize(
    ("name", "text", "is_valid"),
    [
        ("date", "2024-02-29", True),
        ("date", "1900-02-29", False),
        ("date", "2000-02-29", True),
        ("date", "0000-01-01", False),
        ("time", "00:29:60+00:30", True),
        ("time", "00:00:60+00:01", True),
        ("time", "23:59:60+00:01", False),
        ("time", "10:00:60-13:59", True),
        ("time", "10:00:60-13:58", False),
        ("date-time", "2024-02-29T23:59:60z", True),
        ("date-time", "2023-02-29T00:00:00Z", False),
        ("date-time", "2023-02-28 00:00:00Z", False),
        ("ipv6", "::", True),
        ("ipv6", "1::1.2.3.4", True),
        ("ipv6", "1:2:3:4:5:6:7::", True),
        ("ipv6", "1:2:3:4:5:6:7:8::", False),
        ("ipv6", "::1:2:3:4:5:6:7:8", False),
        ("ipv4", "1.2.3.04", False),
        ("uuid", "123e4567-e89b-12d3-a456-426655440000", True),
        ("uri", "http://[::1]:80/a?b#c", True),
        ("uri-reference", "", True),
        ("iri", "http://ü.example/ß", True),
        ("uri", "http://ü.example/", False),
        ("email", "a@b", True),
        ("email", "a b@c", False),
    ],
)
def test_a_format(name: str, text: str, is_valid: bool) -> None:
    assert all(matches(regex, text) for regex in FORMATS[name]) == is_valid
