"""The arithmetic of evals/jsonschema: the one form, the letters, the table's strikes."""

from __future__ import annotations

import importlib
import json
import pathlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

NAMES = ("forms", "mutate", "backends", "data", "probes", "worker", "table", "run")


@pytest.fixture(scope="module")
def evals(repository: pathlib.Path) -> Iterator[dict[str, ModuleType]]:
    """The folder's modules, with the folder on the path for their own imports only."""
    kept = {name: sys.modules.pop(name) for name in NAMES if name in sys.modules}
    sys.path.insert(0, str(repository / "evals" / "jsonschema"))
    try:
        yield {name: importlib.import_module(name) for name in NAMES}
    finally:
        sys.path.pop(0)
        for name in NAMES:
            sys.modules.pop(name, None)
        sys.modules.update(kept)


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        ({"properties": {"b": {}, "a": {}}}, {"x": 1.0, "a": 1, "b": [1.5, "é"]}, '{"b": [1.5, "é"], "a": 1, "x": 1}'),
        ({"allOf": [{"properties": {"z": {}}}], "properties": {"b": {}}}, {"b": 1, "z": 2}, '{"z": 2, "b": 1}'),
        (
            {"properties": {"b": {}}, "$ref": "#/$defs/d", "$defs": {"d": {"properties": {"a": {}}}}},
            {"a": 1, "b": 2},
            '{"b": 2, "a": 1}',
        ),
        (
            {"anyOf": [{"properties": {"k": {"const": 1}, "a": {}}}, {"properties": {"a": {}, "k": {"const": 2}}}]},
            {"k": 2, "a": 0},
            '{"a": 0, "k": 2}',
        ),
        ({"enum": [{"b": 1, "a": 2}]}, {"a": 2.0, "b": 1}, '{"b": 1, "a": 2}'),
        ({"patternProperties": {"^p": {}}, "required": ["r"]}, {"x": 1, "p": 2, "r": 3}, '{"r": 3, "p": 2, "x": 1}'),
        ({"items": {"properties": {"b": {}, "a": {}}}}, [{"a": 1, "b": 2}], '[{"b": 2, "a": 1}]'),
    ],
)
def test_the_one_form(evals: dict[str, Any], schema: Any, value: Any, text: str) -> None:
    assert evals["forms"].spelled(evals["forms"].KeyOrder(schema).ordered(value)) == text


def test_letters(evals: dict[str, Any]) -> None:
    case = evals["data"].case_of("c", {"type": "integer"}, [{"data": 1, "valid": True}, {"data": "x", "valid": False}])
    for backend in ("auto", "llguidance", "xgrammar", "outlines", "prepared:llguidance"):
        assert evals["worker"].verdict_of(backend, case) == ("=", "")
    wrong = evals["data"].Case("w", {"type": "integer"}, [(("1",), False), (('"x"',), True)])
    assert evals["worker"].verdict_of("auto", wrong)[0] == "B"
    refused = evals["data"].Case("r", {"type": "string", "format": "hostname"}, [])
    assert evals["worker"].verdict_of("auto", refused)[0] == "r"
    assert evals["run"].summary("==rtARBM") == {
        "schemas": 8,
        "right": 3,
        "right_with_mutants": 2,
        "refused": 2,
        "wrong_accept": 2,
        "wrong_reject": 2,
    }


def test_a_number_that_is_another_value_in_the_form_is_labelled_anew(evals: dict[str, Any]) -> None:
    draft4 = {"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer"}
    case = evals["data"].case_of("c", draft4, [{"data": 12.0, "valid": False}, {"data": 1.5, "valid": False}])
    assert [is_valid for _, is_valid in case.texts] == [True, False]
    assert case.relabelled == 1


def test_the_table_strikes_the_most_suspicious_feature(evals: dict[str, Any]) -> None:
    a, ab, c = frozenset({"a"}), frozenset({"a", "b"}), frozenset({"c"})
    honoured = {"a", "b", "c"}
    assert evals["table"].struck([ab, ab], [a, a, a, c], honoured) == [("b", 2, 0)]
    assert honoured == {"a", "c"}


@pytest.mark.parametrize(
    "backend", ["llguidance", *(pytest.param(name, marks=pytest.mark.slow) for name in ("xgrammar", "outlines"))]
)
def test_the_committed_table_holds_for_the_probes(evals: dict[str, Any], backend: str) -> None:
    """A library's update that breaks a probe of a feature it is trusted with fails here."""
    honoured = importlib.import_module("decodex.grammar.schema.honoured").HONOURED[backend]
    faults = evals["table"].probe_faults(backend)
    assert not faults.keys() & honoured, {key: faults[key] for key in faults.keys() & honoured}


def test_every_feature_has_a_probe(evals: dict[str, Any]) -> None:
    features = importlib.import_module("decodex.grammar.schema.features").features_of
    for name, cases in evals["probes"].PROBES.items():
        assert any(name in features(schema) for schema, _ in cases), name
    assert json.dumps(sorted(evals["probes"].PROBES))
