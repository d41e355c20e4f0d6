"""Patterns: the exact spelling against an ECMA-262 engine; what is invalid or catastrophic is refused."""

from __future__ import annotations

import time

import pytest
import regress
from hypothesis import given, settings
from hypothesis import strategies as st

from decodex.grammar.schema.ecma import RegexError
from decodex.grammar.schema.patterns import anything_but, length_regex, matches, whole_regexes

TEXTS = [
    "",
    "a",
    "b",
    "ab",
    "ba",
    "aab",
    "abc",
    "A",
    "1",
    "12",
    "a1",
    "a-b",
    "a.b",
    "a b",
    "\n",
    "a\n",
    "\na",
    " ",
    "\u00a0",
    "\u2028",
    "é",
    "aé",
    "😀",
    "😀a",
    "_",
    "-",
    "x@y.z",
    "2020-01-01",
    "\\",
    "/",
    "^",
    "$",
    "[",
    "]",
    "\t",
    "\ufeff",
]
PATTERNS = [
    "",
    "a",
    "^a",
    "a$",
    "^a$",
    "a|b",
    "^a|b$",
    "^(a|b)$",
    "(^a|b)c?",
    ".",
    "^.$",
    "^..$",
    r"\d",
    r"^\w+$",
    r"^\s$",
    r"\S",
    r"^\D*$",
    r"\W",
    "[ab]",
    "[^ab]",
    "^[^a]$",
    r"[\d-]",
    r"[\w.]",
    "^[a-c]+$",
    "[]",
    "[^]",
    "a{2}",
    "^a{1,2}$",
    "a{2,}",
    "a{,2}",
    "^(ab)*$",
    "^(?:a|bc)+$",
    "(?<n>a)b",
    r"\.",
    r"\-",
    r"a\/b",
    r"\u0061",
    r"\x61",
    r"\u{1F600}",
    r"\ud83d\ude00",
    r"\cJ",
    r"\t",
    r"^\n$",
    r"\^",
    r"\$",
    r"^[\]\\]$",
    "^$",
    "^$|^a",
    "(^$)|(^ab?$)",
    "a*?",
    "a+?b",
    "^(?=a).*b$",
    "^(?=.*a)(?=.*b).*$",
    r"\p{L}",
    r"^\P{L}$",
    r"[\p{L}\d]+",
    "^[-a]$",
    "[a-]",
    "😀",
    "^[😀]$",
    "^([a-z]+[.-])*[a-z]+$",
    "x{0}",
    "^x{0}$",
    "(a|^)b",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_means_what_ecma_262_says(pattern: str) -> None:
    try:
        engine = regress.Regex(pattern, "u")
    except regress.RegressError:  # an identity escape or a lone brace: legal without the flag
        engine = regress.Regex(pattern)
    regexes = whole_regexes(pattern)
    for text in TEXTS:
        assert all(matches(regex, text) for regex in regexes) == (engine.find(text) is not None), (text, regexes)


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "a)",
        "[a",
        "*",
        "a**",
        "(?",
        "a{2,1}",
        "\\",
        r"[\d-a]"[:-1] + "\\",
        "(?i)a",
        r"\p{",
        "[b-a]",
        "(?<1>a)",
        r"\u{110000}",
        "a++",
    ],
)
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(RegexError):
        whole_regexes(pattern)


@pytest.mark.parametrize(
    "pattern", [r"(a)\1", r"\bword\b", "(?<=a)b", "(?<!a)b", "^(?!a)", "a(?=b)", "a^b", "(a$)b", "$^"]
)
def test_what_is_no_regular_language_or_not_at_the_edge_is_refused(pattern: str) -> None:
    with pytest.raises(RegexError, match="support"):
        whole_regexes(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "^(a|a)*$",
        "(a|aa)+$",
        "(.*)*",
        r"^(\w+\s?)*$",
        "(a*)*b",
        "(a?b?)*c",
        "^([a-zA-Z0-9]+)*@",
        "(x+x+)+y",
        "((a{2,})+)+",
    ],
)
def test_a_catastrophic_pattern_is_refused_at_once(pattern: str) -> None:
    start = time.perf_counter()
    with pytest.raises(RegexError, match="catastrophic"):
        whole_regexes(pattern)
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    "pattern", ["^([a-z]+\\.)*[a-z]+$", "^(a|b)*$", "^(ab|ba)+$", "a*a*", "^(?:[^,]+,)*[^,]*$", "^(\\d+)(\\.\\d+)*$"]
)
def test_nested_loops_that_are_apart_are_not_catastrophic(pattern: str) -> None:
    whole_regexes(pattern)


def test_a_repetition_that_unrolls_to_too_much_is_refused() -> None:
    with pytest.raises(RegexError, match="unroll"):
        whole_regexes("((a{1,100}){1,100}){1,100}")
    with pytest.raises(RegexError, match="too large"):
        whole_regexes("a{99999999999}")


def test_deep_groups_are_refused() -> None:
    with pytest.raises(RegexError, match="nested"):
        whole_regexes("(" * 500 + "a" + ")" * 500)


SMALL = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "\\d"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}"])).map(lambda two: f"(?:{two[0]}){two[1]}"),
        inner.map(lambda one: f"^{one}"),
        inner.map(lambda one: f"{one}$"),
    ),
    max_leaves=5,
)


@settings(max_examples=150, derandomize=True)
@given(SMALL, st.lists(st.text("ab1\n", max_size=5), min_size=4, max_size=8))
def test_random_patterns(pattern: str, texts: list[str]) -> None:
    try:
        regexes = whole_regexes(pattern)
    except RegexError:
        return
    engine = regress.Regex(pattern, "u")
    for text in texts:
        assert all(matches(regex, text) for regex in regexes) == (engine.find(text) is not None), (text, regexes)


@settings(max_examples=100, derandomize=True)
@given(st.sets(st.text("ab\n$", max_size=3), max_size=4), st.lists(st.text("ab\n$", max_size=4), max_size=8))
def test_anything_but(banned: set[str], texts: list[str]) -> None:
    regex = anything_but(banned)
    for text in [*banned, *texts]:
        assert matches(regex, text) == (text not in banned)


def test_lengths_count_code_points() -> None:
    assert matches(length_regex(2, 2), "😀\n")
    assert not matches(length_regex(2, None), "😀")
