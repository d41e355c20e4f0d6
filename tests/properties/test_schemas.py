"""K5, schemas compiled wrongly: random schemas with keywords side by side, against an independent validator.

Rewriting keeps the meaning; what is compiled admits an instance, in the one JSON form, exactly when the validator
does, and no other spelling of an invalid one; refusals are counted and bounded.
"""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from properties.schemas import instances, mutants, schemas
from toy_grammars import accepts, compiled

from decodex.grammar.errors import ConstraintError
from decodex.grammar.schema.prepare import prepare_schema

NEAR = 8  # mutants of each instance
MAX_REFUSED = 0.45  # of random schemas, most of which nobody would write


def _load_forms() -> Any:
    path = pathlib.Path(__file__).resolve().parents[2] / "evals" / "jsonschema" / "forms.py"
    spec = importlib.util.spec_from_file_location("jsonschema_forms", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


forms = _load_forms()


def _candidates(values: list[Any]) -> list[Any]:
    return [near for value in values for near in (value, *mutants(value)[:NEAR])]


def _check_rewriting(schema: Any, values: list[Any]) -> str:
    """Whether the schema was rewritten, found empty or refused; AssertionError where the meaning changed."""
    before = forms.validator_of(schema)
    try:
        prepared = prepare_schema(json.dumps(schema)).schema
    except ConstraintError as error:
        if "no value satisfies" not in error.reason:
            return "refused"
        assert not any(before.is_valid(value) for value in _candidates(values))
        return "empty"
    after = forms.validator_of(prepared)
    for value in _candidates(values):
        assert before.is_valid(value) == after.is_valid(value), (value, prepared)
    return "rewritten"


def _spellings(value: Any) -> list[str]:
    """Texts of a value in other forms than the one: escapes, orders of keys, whitespace."""
    found = [json.dumps(value, separators=(",", ":")), json.dumps(value, indent=1), json.dumps(value, sort_keys=True)]
    if isinstance(value, dict) and value:
        found.append(json.dumps(dict(reversed(value.items()))))
        escaped = "".join(f"\\u{ord(c):04x}" for c in next(iter(value)))
        first = next(iter(value))
        found.append(json.dumps(value).replace(f'"{first}": ', f'"{escaped}": ', 1))
        found.append(json.dumps(value)[:-1] + f', "{escaped}": "again"}}')
    return found


def _check_compiled(schema: Any, values: list[Any]) -> str:
    """As _check_rewriting, through the compiled grammar."""
    try:
        grammar = compiled("json", json.dumps(schema))
    except ConstraintError as error:
        return "empty" if "no value satisfies" in error.reason else "refused"
    order = forms.KeyOrder(schema)
    for value in _candidates(values):
        is_valid = order.validator.is_valid(value)
        text = forms.spelled(order.ordered(value))
        assert accepts(grammar, text) == is_valid, (text, is_valid)
        for other in _spellings(value):
            if accepts(grammar, other):
                assert order.validator.is_valid(json.loads(other)), other
    return "compiled"


def _run(check: Any, num_examples: int) -> Counter[str]:
    seen: Counter[str] = Counter()

    @settings(max_examples=num_examples, derandomize=True, database=None)
    @given(schemas(), st.lists(instances, min_size=3, max_size=5))
    def one(schema: Any, values: list[Any]) -> None:
        seen[check(schema, values)] += 1

    one()
    assert seen["refused"] < MAX_REFUSED * seen.total(), seen
    return seen


def test_rewriting_keeps_the_meaning() -> None:
    assert _run(_check_rewriting, 150)["rewritten"] > 50


def test_what_is_compiled_is_what_is_valid() -> None:
    assert _run(_check_compiled, 80)["compiled"] > 25


@pytest.mark.slow
def test_rewriting_keeps_the_meaning_at_length() -> None:
    assert _run(_check_rewriting, 4000)["rewritten"] > 1500


@pytest.mark.slow
def test_what_is_compiled_is_what_is_valid_at_length() -> None:
    assert _run(_check_compiled, 2000)["compiled"] > 700
