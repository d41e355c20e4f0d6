"""Rules rewritten as repetitions: the same members as the grammar as it was written, by enumeration."""

from __future__ import annotations

import itertools
import random

import pytest
from toy_grammars import accepts, compiled

from decodex.grammar.ebnf import Rules, parse_ebnf
from decodex.grammar.iteration import iterated
from decodex.grammar.pattern import Chars, Choice, Concat, Pattern, Repeat, Rule, Text

LIMIT = 5


def joined(one: set[str], other: set[str]) -> set[str]:
    return {a + b for a in one for b in other if len(a) + len(b) <= LIMIT}


def members(rules: Rules) -> set[str]:
    """All members up to a length: the smallest fixed point."""
    found: dict[str, set[str]] = {name: set() for name, _ in rules.rules}

    def of(pattern: Pattern) -> set[str]:
        if isinstance(pattern, Text):
            return {pattern.text} if len(pattern.text) <= LIMIT else set()
        if isinstance(pattern, Chars):
            return {chr(code) for first, last in pattern.ranges for code in range(first, last + 1)}
        if isinstance(pattern, Rule):
            return found[pattern.name]
        if isinstance(pattern, Choice):
            return set().union(*map(of, pattern.parts))
        if isinstance(pattern, Concat):
            texts = {""}
            for part in pattern.parts:
                texts = joined(texts, of(part))
            return texts
        assert isinstance(pattern, Repeat)
        part, texts = of(pattern.part), {""}
        for _ in range(pattern.low):
            texts = joined(texts, part)
        every = set(texts)
        for _ in range(LIMIT if pattern.high is None else min(pattern.high - pattern.low, LIMIT)):
            texts = joined(texts, part)
            every |= texts
        return every

    while True:
        new = {name: of(pattern) for name, pattern in rules.rules}
        if new == found:
            return found["root"]
        found.update(new)


def random_grammar(rng: random.Random) -> str:
    parts = ["root", "root", "x", '"a"', '"b"', "[ab]", '"a"?', '("a" | root "b")', '("b" root)?', "root?", "root*"]

    def alternatives(needed: str) -> str:
        rows = [" ".join(rng.choices(parts, k=rng.randint(1, 3))) for _ in range(rng.randint(1, 4))]
        return " | ".join([*rows, needed])

    inner = alternatives(rng.choice(["x x", "x root x", "[b]"]))
    return f"root ::= {alternatives('[a]')}\nx ::= {inner} | [b]"


def test_random_grammars_keep_their_members() -> None:
    rng, num_rewritten = random.Random(0), 0
    for _ in range(150):
        text = random_grammar(rng)
        rules = parse_ebnf(text)
        after = iterated(rules)
        num_rewritten += after != rules
        assert members(after) == members(rules), text
    assert num_rewritten > 40


AMBIGUOUS = [
    "root ::= root root | [ab]",
    "root ::= root root root | root root | [ab]",
    "root ::= [ab]? [ab]? [ab]? root | [ab]",
    'root ::= root root | "a"',
    'root ::= root [+*] root | "-" root | root "!" | "(" root ")" | "0"',
    'root ::= e "."\ne ::= e op e | "n"\nop ::= "+" | "*" op',
    'root ::= list\nlist ::= list "," item | item\nitem ::= "a" item | "b"',
]


@pytest.mark.parametrize("text", AMBIGUOUS)
def test_ambiguous_grammars_work_as_they_are_meant(text: str) -> None:
    grammar, wanted = compiled("grammar", text), members(parse_ebnf(text))
    alphabet = sorted({c for member in wanted for c in member})[:5]
    for size in range(1, 5):
        for row in itertools.product(alphabet, repeat=size):
            assert accepts(grammar, "".join(row)) == ("".join(row) in wanted), row
    member = max(wanted, key=len)
    assert accepts(grammar, member)
