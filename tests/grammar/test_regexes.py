"""Regular expressions: their language against RE2 on every short text, three backends, and what is refused."""

from __future__ import annotations

import itertools
import json
import pathlib
import re
import time

import pytest
import re2
from toy_grammars import BACKENDS, accepts, compiled

from decodex.grammar.errors import ConstraintError
from decodex.grammar.pattern import to_rust
from decodex.grammar.regexes import parse_regex

# pattern, the characters that its texts are made of
PATTERNS = [
    ("a|bc", "abc"),
    ("^a*b$", "ab"),
    ("^a|b$", "ab"),
    ("(^a)b", "ab"),
    (r"\d{2,3}-\w", "01-_ "),
    (r"\s*\S", " a\n\v\t"),
    ("[^ab]", "abcé\n"),
    (".", "a\né"),
    ("(?s).", "a\né"),
    ("(?i)aB|-", "abAB-"),
    ("a(?i)b(?-i)a", "abAB"),
    ("(a(?i)b)a", "abAB"),
    ("(?i:k)", "kKK"),
    ("(?i)[^k]", "kKKa"),
    (r"a\.b\x41\x{e9}", "ab.Aé"),
    ("a{,2}", "a{,2}"),
    ("a{2}b{0}", "ab"),
    ("(ab?){2}", "ab"),
    ("(?P<name>a)(?<other>b)?", "ab"),
    ("[a-c-]", "abc-d"),
    ("[]a]", "]ab"),
    ("[^]a]", "]ab"),
    (r"[\d\]x]", "0]x\\"),
    ("[[:alpha:][:digit:]]", "a0_"),
    ("[[:^alpha:]]", "a0_"),
    (r"\p{Lu}\P{L}", "Aaé0"),
    (r"[^\pL]", "aé0"),
    (r"\Qa.b\E*", "a.b"),
    ("", "a"),
    ("(|a)b", "ab"),
    ("a+?b??", "ab"),
    (r"\Aa\z", "a"),
    (r"\01\t", "\x01\t"),
    ("[ -~]", "a~\x7f"),
]


def full_match(pattern: str, text: str) -> bool:
    return re2.fullmatch(pattern, text) is not None


@pytest.mark.parametrize(("pattern", "alphabet"), PATTERNS)
def test_language_is_re2s(pattern: str, alphabet: str) -> None:
    texts = ["".join(t) for n in range(6) for t in itertools.product(alphabet, repeat=n) if len(alphabet) ** n < 1500]
    for backend in BACKENDS:
        if backend == "outlines" and not pattern:
            continue
        grammar = compiled("regex", pattern, backend)
        for text in texts:
            assert accepts(grammar, text) == full_match(pattern, text), (backend, text)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(a", "missing )"),
        ("a)", "unbalanced"),
        ("[a", "ends too early"),
        ("*a", "nothing to repeat"),
        ("a**", "needs brackets"),
        ("a(?=b)", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "backreferences"),
        (r"\ba", "word boundaries"),
        ("a^b", "anchor inside"),
        ("a$b", "anchor inside"),
        ("(?m)^a", "not supported"),
        (r"\p{Greek}", "not supported"),
        ("(?i)É", "ASCII letters only"),
        ("a{1001}", "1,000"),
        ("a{3,2}", "bad repetition"),
        ("[z-a]", "bad range"),
        (r"[^\x00-\x{10FFFF}]", "empty class"),
        (r"\x{D800}", "no character"),
        (r"\x{110000}", "no character"),
        ("\\", "too early"),
        ("\ud800", "lone surrogate"),
        ("(" * 101 + "a" + ")" * 101, "nested more than"),
        ("(a{1000}){1000}", "too large"),
        ("((a{100}){100}){100}", "too large"),
        ("(((a{10}){10}){10}){1000}", "too large"),
        ("a" * 2_000_000, "bytes"),
    ],
)
def test_refused_at_once_with_the_reason(pattern: str, reason: str) -> None:
    started = time.monotonic()
    with pytest.raises(ConstraintError, match=reason.replace("(", r"\(").replace(")", r"\)")):
        parse_regex(pattern)
    assert time.monotonic() - started < 1


def test_outlines_refuses_the_empty_language_of_one() -> None:
    with pytest.raises(ConstraintError, match="only the empty text"):
        compiled("regex", "", "outlines")


def test_catastrophic_patterns_are_harmless() -> None:
    """Backtracking engines take exponential time for these."""
    for pattern in ("(x+x+)+y", "(a|aa)+$", "(a*)*b", "(.*a){20}"):
        grammar = compiled("regex", pattern)
        matcher = grammar.matcher()
        started = time.monotonic()
        for _ in range(40):
            matcher.accept(2 + ord("x" if pattern.startswith("(x") else "a"))
        assert time.monotonic() - started < 2


def test_printed_syntax_has_no_metacharacters_left() -> None:
    assert to_rust(parse_regex(r"\.\*[.]x")) == r"\x{2e}\x{2a}[\x{2e}]x"


def test_real_regexes(repository: pathlib.Path) -> None:
    """270 published ones: accepted exactly where RE2 matches as a whole, or refused for what RE2 does not have."""
    path = repository.parent / "shared" / "data" / "regex" / "regexes.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    num_accepted = 0
    for line in path.read_text("utf-8").splitlines():
        record = json.loads(line)
        grammar, reason = None, ""
        try:
            grammar = compiled("regex", record["regex"])
        except ConstraintError as error:
            reason = error.reason
        if grammar is None:
            assert re.search("look-around|backreferences|unknown escape", reason), record["regex"]
            continue
        num_accepted += 1
        for text in record["match"] + record["no_match"]:
            assert accepts(grammar, text) == full_match(record["regex"], text), (record["regex"], text)
    assert num_accepted >= 230
