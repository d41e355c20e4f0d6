"""The data sets: schemas with labelled instances, every instance in the texts that it is judged by."""

from __future__ import annotations

import gzip
import json
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evals.jsonschema import forms, mutate
else:
    import forms
    import mutate

__all__ = ["BUILD", "SPLITS", "Case", "bench_cases", "suite_cases"]

SPLITS = ("BFCL", "Github_easy", "Github_medium", "Github_trivial", "Glaiveai2K", "JsonModeEval", "Kubernetes",
          "Synthesized")  # fmt: skip
BUILD = ("BFCL", "Github_easy", "Glaiveai2K", "Synthesized")  # the routing table sees these and the probes only
# In these groups a format is an annotation; optional/format judges the same schemas with formats as assertions.
ANNOTATION_FILES = ("format.json",)


@dataclass(frozen=True)
class Case:
    """One schema. texts: (forms of one instance, is valid); the first form is the one JSON form."""

    name: str
    schema: Any
    texts: list[tuple[tuple[str, ...], bool]]
    relabelled: int = 0  # instances whose form is another value for the schema's draft (12.0 written as 12)
    mutants: tuple[str, ...] = ()  # further texts that are no members (mutate.py)


def case_of(name: str, schema: Any, tests: list[dict[str, Any]]) -> Case:
    """A case with its instances written out. An invalid instance is judged in its own order of keys too."""
    order = forms.KeyOrder(schema)
    texts, relabelled = [], 0
    for test in tests:
        form, own = forms.spelled(order.ordered(test["data"])), forms.spelled(test["data"])
        is_valid = test["valid"]
        if not is_valid and json.dumps(forms.plain(test["data"])) != json.dumps(test["data"]):
            is_valid = order.validator.is_valid(json.loads(form))
            relabelled += is_valid
        texts.append(((form,) if is_valid else tuple(dict.fromkeys((form, own))), is_valid))
    values = [test["data"] for test in tests if test["valid"]]
    return Case(name, schema, texts, relabelled, tuple(mutate.invalid_texts(order, values, forms.spelled)))


def bench_cases(folder: pathlib.Path, split: str, every: int = 1) -> Iterator[Case]:
    """JSONSchemaBench, one split, each `every`-th schema."""
    with gzip.open(folder / "jsonschemabench" / f"{split}.jsonl.gz", "rt") as lines:
        for i, line in enumerate(lines):
            if i % every == 0:
                record = json.loads(line)
                yield case_of(record["id"], record["schema"], record["tests"])


def suite_cases(folder: pathlib.Path) -> Iterator[Case]:
    """JSON-Schema-Test-Suite, draft 2020-12: the required files and the formats as assertions."""
    root = folder / "json_schema_test_suite" / "tests" / "draft2020-12"
    for path in [*sorted(root.glob("*.json")), *sorted((root / "optional" / "format").glob("*.json"))]:
        if path.name in ANNOTATION_FILES:
            continue
        for group in json.loads(path.read_text()):
            tests = group["tests"]
            order = forms.KeyOrder(group["schema"])
            texts: list[tuple[tuple[str, ...], bool]] = [
                ((forms.spelled(order.ordered(test["data"])),), test["valid"]) for test in tests
            ]
            yield Case(f"{path.stem}: {group['description']}", group["schema"], texts)
