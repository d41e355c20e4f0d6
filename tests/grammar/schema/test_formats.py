"""Formats against the official test suite, where the data sets are."""

from __future__ import annotations

import json
import pathlib
import random
from collections.abc import Iterator

import pytest
from toy_grammars import VOCABULARY, accepts, compiled, mask_of

from decodex.grammar.check import IndependentCheck
from decodex.grammar.constraint import Constraint
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


@pytest.fixture(scope="module")
def check() -> Iterator[IndependentCheck]:
    made = IndependentCheck(timeout=30.0)
    yield made
    made.close()


def drawn(schema: str, rng: random.Random) -> str | None:
    """A member's text along random legal tokens, or None where none was reached."""
    matcher, text = compiled("json", schema).matcher(), b""
    quote = VOCABULARY.tokens.index(b'"')
    for _ in range(100):
        legal = sorted(mask_of(matcher) - VOCABULARY.eos_token_ids)
        if not legal:
            return text.decode()
        token = quote if quote in legal and text and rng.random() < 0.15 else rng.choice(legal)
        assert matcher.accept(token)
        text += VOCABULARY.tokens[token]
    return text.decode() if matcher.is_terminated else None


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_the_check_admits_what_the_masks_do(name: str, check: IndependentCheck) -> None:
    schema = json.dumps({"type": "string", "format": name})
    rng = random.Random(name)
    texts = [text for _ in range(30) if (text := drawn(schema, rng)) is not None]
    assert len(texts) > 10
    for text in texts:
        assert check.submit(Constraint("json", schema), text).result(timeout=60) is None, text


@pytest.mark.parametrize("offset", ["Z", "z", "+00:00", "-00:00", "+01:30", "-08:00", "+23:59", "-23:59"])
def test_leap_seconds_are_the_same_on_both_sides(offset: str, check: IndependentCheck) -> None:
    for name, date in (("time", ""), ("date-time", "2016-12-31T")):
        schema = json.dumps({"type": "string", "format": name})
        grammar, found = compiled("json", schema), 0
        for hour in (0, 1, 15, 16, 22, 23):
            for minute in (0, 29, 58, 59):
                text = f'"{date}{hour:02}:{minute:02}:60.5{offset}"'
                is_valid = check.submit(Constraint("json", schema), text).result(timeout=60) is None
                assert accepts(grammar, text) == is_valid, text
                found += is_valid
        assert found <= 1
