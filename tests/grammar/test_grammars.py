"""EBNF and Lark: languages against recognisers written by hand, dialects, and faults with their line."""

from __future__ import annotations

import itertools
import random
import re

import pytest
from toy_grammars import accepts, check_finite, compiled

from decodex.grammar.ebnf import parse_ebnf
from decodex.grammar.errors import ConstraintError
from decodex.grammar.lexemes import quoted_texts

BALANCED = 'root ::= "(" root ")" root | ""'
SUMS = """
# a sum of numbers in brackets
root ::= term ("+" term)*
term ::= [0-1]+ | "(" root ")"
"""


def is_balanced(text: str) -> bool:
    depth = 0
    for sign in text:
        depth += 1 if sign == "(" else -1
        if depth < 0:
            return False
    return depth == 0


def is_sum(text: str) -> bool:
    """By rewriting: a number, or a sum in brackets, is a term; terms with + between are a sum."""
    while "(" in text or ")" in text:
        head, bracket, rest = text.rpartition("(")
        inner, closing, tail = rest.partition(")")
        if not bracket or not closing or "(" in inner or not is_sum(inner) or (head and head[-1] not in "(+"):
            return False
        if tail and tail[0] not in "+)":
            return False
        text = f"{head}0{tail}"
    return all(set(term) == {"0"} for term in text.split("+"))


def is_double(text: str) -> bool:
    """a^n b^n: no regular expression can do this."""
    half = len(text) // 2
    return text == "a" * half + "b" * half


@pytest.mark.parametrize("backend", ["auto", "xgrammar", "llguidance"])
@pytest.mark.parametrize(
    ("grammar", "alphabet", "is_member"),
    [
        (BALANCED, "()", is_balanced),
        (SUMS, "0+()", is_sum),
        ('root ::= ("a" root "b")?', "ab", is_double),
        ('root ::= root "a" | "b"', "ab", lambda t: t[:1] == "b" and set(t[1:]) <= {"a"}),
        ('root ::= [a-b]* "a" | x\nx ::= "b" x?', "ab", lambda t: t[-1:] == "a" or (bool(t) and set(t) == {"b"})),
    ],
)
def test_languages(backend: str, grammar: str, alphabet: str, is_member) -> None:
    compiled_grammar = compiled("grammar", grammar, backend)
    for length in range(7 if len(alphabet) == 2 else 6):
        for signs in itertools.product(alphabet, repeat=length):
            text = "".join(signs)
            assert accepts(compiled_grammar, text) == is_member(text), text


TEXTS = r"""
root ::= "[" (item ("," item)*)? "]"
item ::= root | "\"" ([^"\\] | "\\" (["\\] | "u" [0-9]{2}))* "\"" | "'" [a]{1,2} "'"
"""


def is_text_list(text: str) -> bool:
    item = r"""(?:"(?:[^"\\]|\\(?:["\\]|u[0-9]{2}))*"|'a{1,2}')"""
    while True:
        shorter = re.sub(rf"\[(?:{item}(?:,{item})*)?\]", '""', text)
        if shorter == text:
            return False
        if shorter == '""':
            return True
        text = shorter


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
def test_quoted_texts_in_a_recursive_grammar(backend: str) -> None:
    """They become single terminals for llguidance; members stay the same."""
    grammar = compiled("grammar", TEXTS, backend)
    rng = random.Random(4)
    texts = {"[]", '["[",[]]', '["\\""]', '["a\\u01"]', '["a\\u0"]', "['aa','a']", "['aaa']", '["]', '["""]', '[""""]'}
    for _ in range(1500):
        texts.add("[" + "".join(rng.choice('[],""\\\'au01') for _ in range(rng.randint(0, 7))) + "]")
    for text in sorted(texts):
        assert accepts(grammar, text) == is_text_list(text), text


@pytest.mark.parametrize(
    ("text", "num_quoted"),
    [
        (TEXTS, 2),
        ('root ::= "<" [^>]* ">" root?', 1),
        ('root ::= "<" [^>]* ">" root? | "<" "a"', 0),  # the sign opens something else too
        ('root ::= "<" [^>]* ">" root? | "<" [a]* ">"', 0),  # two kinds with one sign
        ('root ::= "<" .* ">" root?', 0),  # the end is no end
        ('root ::= "<" ("a" | "ab")* ">" root?', 0),  # no prefix code
        ('root ::= "<" ("a" | root)* ">"', 0),  # not regular
    ],
)
def test_which_quoted_texts_are_terminals(text: str, num_quoted: int) -> None:
    assert len(quoted_texts(pattern for _, pattern in parse_ebnf(text).rules)) == num_quoted


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance", "outlines"])
def test_elements_of_the_dialect(backend: str) -> None:
    text = r"""
root  ::= greeting{1,2} (sign | [\]"\-x] ) other-rule   # the rest
greeting ::=
    "a\n\x41" |
    "\u00e9"
sign ::= "\"" | "\\" | [^a-z\n\u0000-\u001f!-\U0010ffff]
other-rule ::= () | "."{2}
"""
    starts = ["a\nA", "é"]
    greetings = [*starts, *(a + b for a in starts for b in starts)]
    members = [g + s + o for g in greetings for s in ['"', "\\", "]", "-", "x", " "] for o in ["", ".."]]
    check_finite(compiled("grammar", text, backend), [m.encode() for m in members], random.Random(1))


def test_the_dot_is_any_character() -> None:
    for backend in ("xgrammar", "llguidance", "outlines"):
        grammar = compiled("grammar", "root ::= .", backend)
        assert [accepts(grammar, text) for text in ("a", "\n", "é", "", "ab")] == [True, True, True, False, False]


def test_rules_without_an_end_are_taken_out() -> None:
    grammar = compiled("grammar", 'root ::= "a" | "b" endless | "c" endless*\nendless ::= "x" endless')
    check_finite(grammar, [b"a", b"c"], random.Random(2))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('root ::= "a" root', "never comes to an end"),
        ('root ::= a\na ::= b\nb ::= a "x"', "never comes to an end"),
        ('root ::= "a" x', "'x', which is not defined"),
        ('start ::= "a"', "no rule named 'root'"),
        ('root ::= "a"\nroot ::= "b"', "line 2: rule 'root' is defined twice"),
        ('root ::= "a"\n  "b', "line 2: it ends inside"),
        ('root ::= ("a"\n\nx ::= "b"', "line 3: missing \\)"),
        ("root ::= [z-a]", "bad range"),
        ("root ::= []", "empty class"),
        ('root ::= "\\q"', "unknown escape"),
        ('root ::= "a"{10001}', "repetitions"),
        ('root ::= (("a"{1000}){1000}){1000}', "too large"),
        ('root ::= "a" %', "line 1: unexpected '%'"),
        ("root ::= " + "(" * 101 + '"a"' + ")" * 101, "nested more than"),
        ("hello", "expected EBNF"),
        ("", "expected EBNF"),
    ],
)
def test_faults_of_ebnf(text: str, reason: str) -> None:
    with pytest.raises(ConstraintError, match=reason):
        compiled("grammar", text)


def test_lark() -> None:
    grammar = compiled("grammar", 'start: "a" B? | c\nB: /[01]{2}/\nc: "(" start ")"')
    assert grammar.backend == "llguidance"
    for text, is_member in (("a", True), ("a01", True), ("((a))", True), ("a0", False), ("(a", False), ("", False)):
        assert accepts(grammar, text) == is_member, text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("start: x", "x"),
        ("start: <tool>", "line 1: special tokens"),
        ('start: "a"\n  | <[3]>', "line 2: special tokens"),
        ('start: %json {"type": "array"}', "embedded JSON"),
        ("start: @other", "other grammars"),
        ('start[max_tokens=3]: "a"', "attribute"),
        ('start: "a"{99999}', "repetitions"),
        ("start: /(/", "regex|parse"),
    ],
)
def test_faults_of_lark(text: str, reason: str) -> None:
    with pytest.raises(ConstraintError, match=reason):
        compiled("grammar", text)


def test_a_backend_that_cannot_is_refused() -> None:
    with pytest.raises(ConstraintError, match="regular languages only"):
        compiled("grammar", BALANCED, "outlines")
    with pytest.raises(ConstraintError, match="compiled by llguidance"):
        compiled("grammar", 'start: "a"', "xgrammar")
    with pytest.raises(ConstraintError, match="compiled by llguidance"):
        compiled("structural_tag", "{}", "outlines")
