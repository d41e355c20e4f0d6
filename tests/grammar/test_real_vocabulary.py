"""The demo model's 49,152 tokens: walks of every kind and backend give members, whatever a model would prefer."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
import re2

from decodex.errors import ModelError
from decodex.grammar.backends.compile import compile_here
from decodex.grammar.budget import BudgetSteering
from decodex.grammar.constraint import Constraint
from decodex.grammar.errors import ConstraintError
from decodex.grammar.forms import Json
from decodex.grammar.matcher import Matcher
from decodex.grammar.plan import Plan, plan_of
from decodex.grammar.vocabulary import GrammarVocabulary
from decodex.models.source import resolve_model
from decodex.tokenizer import Tokenizer

pytestmark = pytest.mark.real_model

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "red one"]}, "maxItems": 3},
        "size": {"type": "number"},
        "inner": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
    },
    "required": ["name", "tags", "inner"],
    "additionalProperties": False,
}
PHONE = r"\+\d{1,3}( \d{2,4}){2,3}"
CHOICES = ["yes", "no", "I don't know", "日本語", "yes, but"]
WORST = {
    "whitespace": lambda token: token.count(b" ") + token.count(b"\n"),
    "digits": lambda token: sum(48 <= b <= 57 for b in token),
    "opening": lambda token: sum(b in b'{["' for b in token),
    "longest": len,
}


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    try:
        tokenizer = Tokenizer.load(resolve_model("smollm2-135m"))
    except ModelError as error:
        pytest.skip(f"the demo model can't be fetched here: {error}")
    tokens = tokenizer.token_bytes()
    assert tokens is not None

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    return GrammarVocabulary(tokens, tokenizer.special_ids, tokenizer.eos_token_ids, encode)


def walk(matcher: Matcher, vocabulary: GrammarVocabulary, choose: Any, max_tokens: int) -> bytes:
    """Tokens until only the end is left or they are used up; specials are never legal, the ends where accepting."""
    row = np.zeros(vocabulary.num_words, dtype=np.int32)
    text = b""
    for _ in range(max_tokens):
        matcher.fill(row)
        legal = set(vocabulary.unpack(row))
        assert legal & vocabulary.special_ids == (vocabulary.eos_token_ids if matcher.is_accepting else set())
        if matcher.is_terminated:
            break
        token = choose(sorted(legal - vocabulary.eos_token_ids))
        assert matcher.accept(token)
        text += vocabulary.tokens[token]
    return text


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("kind", "backend"),
    [("json", b) for b in ("llguidance", "xgrammar")]
    + [(kind, b) for kind in ("regex", "choice") for b in ("llguidance", "xgrammar", "outlines")],
)
def test_walks_give_members(vocabulary: GrammarVocabulary, kind: str, backend: str, seed: int) -> None:
    if kind == "json":
        plan = Plan(Constraint("json", json.dumps(SCHEMA), backend), backend, Json(SCHEMA, "spaced"))
    else:
        plan = plan_of(Constraint(kind, PHONE if kind == "regex" else json.dumps(CHOICES), backend))  # type: ignore[arg-type]
    matcher = compile_here(plan, vocabulary).matcher()
    rng = random.Random(seed)
    text = walk(BudgetSteering(matcher, vocabulary, 120), vocabulary, rng.choice, 120).decode()
    assert matcher.is_accepting
    if kind == "json":
        jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(text))
        assert text == json.dumps(json.loads(text), ensure_ascii=False) or "." in text or "e" in text.lower()
    elif kind == "regex":
        assert re2.fullmatch(PHONE, text)
    else:
        assert text in CHOICES


@pytest.mark.parametrize("like", sorted(WORST))
@pytest.mark.parametrize("whitespace", ["spaced", "flexible"])
def test_a_worst_model_finishes_within_the_budget(vocabulary: GrammarVocabulary, like: str, whitespace: str) -> None:
    schema = {**SCHEMA, "additionalProperties": True}
    plan = Plan(Constraint("json", json.dumps(schema)), "llguidance", Json(schema, whitespace))
    grammar = compile_here(plan, vocabulary)
    needed = BudgetSteering(grammar.matcher(), vocabulary, 100).num_needed
    assert needed is not None
    assert needed < 40

    def choose(legal: list[int]) -> int:
        return max(legal, key=lambda token: WORST[like](vocabulary.tokens[token]))

    for max_tokens in (needed, needed + 3, needed + 40):
        steering = BudgetSteering(grammar.matcher(), vocabulary, max_tokens)
        text = walk(steering, vocabulary, choose, max_tokens)
        assert steering.is_accepting
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))


LARK = "start: a\na: {}\nCH: /[ -~]/\n"


@pytest.mark.parametrize("body", ["a a | CH", "a a a | a a | CH", "CH? CH? CH? a | CH", 'a a | "a"'])
def test_a_grammar_that_gets_slower_with_every_token_is_refused(vocabulary: GrammarVocabulary, body: str) -> None:
    with pytest.raises(ConstraintError, match="too ambiguous"):
        compile_here(plan_of(Constraint("grammar", LARK.format(body))), vocabulary)
    compile_here(plan_of(Constraint("grammar", LARK.format(f'"(" a ")" | CH{"+"}'))), vocabulary)
