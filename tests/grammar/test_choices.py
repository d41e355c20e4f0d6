"""Choices: exact texts, whatever signs are in them."""

from __future__ import annotations

import json
import random

import pytest
from toy_grammars import BACKENDS, accepts, check_finite, compiled

from decodex.grammar.errors import ConstraintError

LISTS = [
    ["yes", "no"],
    ["a", "ab", "abc", "b"],
    ["", "a"],
    ["a"],
    ["(a|b)*", ".*", "[x]", "\\d", '"', "/", "a\nb", "{", "^$", "#", "'"],
    ["é", "ñé", "日本", "😀", "a\u0301"],
    ["true", "truely", "ab01", "aaaa"],
    [" ", "  ", "\t", "\x00", "\x7f"],
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("choices", LISTS)
def test_masks_equal_the_members(choices: list[str], backend: str) -> None:
    grammar = compiled("choice", json.dumps(choices), backend)
    assert grammar.backend == backend
    check_finite(grammar, [c.encode() for c in choices], random.Random(0))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "at least one choice"),
        ("{}", "at least one choice"),
        ("[1]", "choice 0 is int"),
        ('["a", null]', "choice 1 is NoneType"),
        ("nonsense", "not a JSON list"),
        ('["\\ud800"]', "lone surrogate"),
        (json.dumps(["x" * 9_000]), "characters in choice 0"),
        (json.dumps([str(i) for i in range(20_001)]), "20,001 choices"),
    ],
)
def test_refused(text: str, reason: str) -> None:
    with pytest.raises(ConstraintError, match=reason):
        compiled("choice", text)


def test_many_choices() -> None:
    choices = [f"item {i} of {i * 7919 % 1000}" for i in range(5_000)]
    grammar = compiled("choice", json.dumps(choices))
    assert all(accepts(grammar, choice) for choice in choices[::500])
    assert not accepts(grammar, "item 1 of 1")
