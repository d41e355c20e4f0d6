"""Compile time, mask time and memory of grammars on the demo model's vocabulary: writes evals/results/maskbench.json.

    .venv/bin/python evals/maskbench/run.py [--every 20]
    .venv/bin/python evals/maskbench/run.py --check      # fails where a bar is not met

Schemas are every n-th one of JSONSchemaBench. A walk writes a valid instance of the schema token by token, in the one
JSON form, and times each mask (`fill`) and each whole step (`accept`, `is_terminated` and `fill`); the masks of a
position are computed once, so every fill that is timed computes one. The other libraries run on a smaller sample, each
compilation in a process that is killed after ten seconds. The bars are held against the thread's own CPU time; on a
machine that is not busy with anything else the elapsed times beside it are the same.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psutil

from decodex.cli.machine import machine_facts, version_facts
from decodex.grammar.backends.compile import assemble, compile_here
from decodex.grammar.child import CompileChild
from decodex.grammar.constraint import Constraint
from decodex.grammar.errors import ConstraintError, MatcherError
from decodex.grammar.forms import Json
from decodex.grammar.matcher import CompiledGrammar
from decodex.grammar.plan import Plan, plan_of
from decodex.grammar.vocabulary import GrammarVocabulary
from decodex.models.source import resolve_model
from decodex.tokenizer import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "evals" / "results" / "maskbench.json"
DATA = ROOT.parent / "shared" / "data"
BARS = {"mask_cpu_us_p50": 60.0, "mask_cpu_us_p99": 1000.0, "compile_cpu_ms_p50": 3.0, "compile_cpu_ms_p99": 50.0}
MAX_TOKENS = 200  # of one walk
CHILD_SECONDS = 10.0
Compile = Callable[[], CompiledGrammar]


@dataclass
class Timings:
    """Seconds of one backend over one sample."""

    compile: list[float] = field(default_factory=list)
    compile_cpu: list[float] = field(default_factory=list)  # of this thread; a child's is not in it
    first_mask: list[float] = field(default_factory=list)
    mask: list[float] = field(default_factory=list)
    mask_cpu: list[float] = field(default_factory=list)
    step: list[float] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    num_refused: int = 0
    num_left: int = 0  # walks that left the grammar before their instance's end
    resident: int = 0

    def summary(self) -> dict[str, Any]:
        """Percentiles in ms and us."""
        found: dict[str, Any] = {
            "compiled": len(self.compile),
            "refused": self.num_refused,
            "masks": len(self.mask),
            "walks_left": self.num_left,
            "grammar_kib_p50": round(float(np.median(self.sizes)) / 1024, 1) if self.sizes else None,
            "resident_kib_per_grammar": round(self.resident / 1024 / max(1, len(self.compile)), 1),
        }
        for name, seconds, unit, factor in (
            ("compile", self.compile, "ms", 1e3),
            ("compile_cpu", self.compile_cpu, "ms", 1e3),
            ("first_mask", self.first_mask, "us", 1e6),
            ("mask", self.mask, "us", 1e6),
            ("mask_cpu", self.mask_cpu, "us", 1e6),
            ("step", self.step, "us", 1e6),
        ):
            for percent in (50, 99):
                value = round(float(np.percentile(seconds, percent)) * factor, 2) if seconds else None
                found[f"{name}_{unit}_p{percent}"] = value
        return found


def schemas(every: int) -> list[tuple[str, list[Any]]]:
    """(schema text, valid instances) of every n-th schema of each split."""
    found = []
    for path in sorted((DATA / "jsonschemabench").glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for index, line in enumerate(lines):
                if index % every == 0:
                    record = json.loads(line)
                    valid = [ordered(test["data"], record["schema"]) for test in record["tests"] if test["valid"]]
                    found.append((json.dumps(record["schema"]), valid))
    return found


def regexes(every: int) -> list[tuple[str, list[str]]]:
    """(regex, texts that match it as a whole, where known)."""
    with open(DATA / "regex" / "regexes.jsonl", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return [(record["regex"], record["match"]) for record in records[::every]]


def measured(grammars: Iterable[tuple[Compile, list[str]]], vocabulary: GrammarVocabulary) -> Timings:
    """Compile each, and walk through its texts."""
    timings = Timings()
    row = np.zeros(vocabulary.num_words, dtype=np.int32)
    before = psutil.Process().memory_info().rss
    kept = []
    for compile_one, texts in grammars:
        started, started_cpu = time.perf_counter(), time.thread_time()
        try:
            grammar = compile_one()
        except ConstraintError:
            timings.num_refused += 1
            continue
        timings.compile.append(time.perf_counter() - started)
        timings.compile_cpu.append(time.thread_time() - started_cpu)
        timings.sizes.append(grammar.num_bytes)
        kept.append(grammar)
        for text in texts[:2]:
            walk(grammar, vocabulary.spell(text)[:MAX_TOKENS], row, timings)
    timings.resident = psutil.Process().memory_info().rss - before
    return timings


def walk(grammar: CompiledGrammar, tokens: list[int], row: np.ndarray[Any, Any], timings: Timings) -> None:
    """One text, token by token."""
    matcher = grammar.matcher()
    matcher.fill(row)
    seconds = timings.first_mask
    try:
        for token in tokens:
            started = time.perf_counter()
            if not matcher.accept(token):
                timings.num_left += 1
                return
            if matcher.is_terminated:
                return
            between, between_cpu = time.perf_counter(), time.thread_time()
            matcher.fill(row)
            ended, ended_cpu = time.perf_counter(), time.thread_time()
            seconds.append(ended - between)
            timings.mask_cpu.append(ended_cpu - between_cpu)
            timings.step.append(ended - started)
            seconds = timings.mask
    except MatcherError:
        timings.num_left += 1


def auto(constraint: Constraint, vocabulary: GrammarVocabulary) -> Compile:
    """What a request does: analysis, route and compilation."""
    return lambda: compile_here(plan_of(constraint), vocabulary)


def killable(make: Callable[[], Plan], vocabulary: GrammarVocabulary, child: CompileChild) -> Compile:
    """One library, whatever it honours, in a process that is killed."""

    def compile_one() -> CompiledGrammar:
        plan = make()
        return assemble(plan, child.compile(plan, CHILD_SECONDS, lambda: False), vocabulary)

    return compile_one


def _same(plan: Plan) -> Plan:
    return plan


def ordered(value: Any, schema: Any) -> Any:
    """An instance with the keys of its objects as its schema's `properties` has them, where it says so plainly."""
    if isinstance(value, list):
        items = schema.get("items") if isinstance(schema, dict) else None
        return [ordered(item, items) for item in value]
    if not isinstance(value, dict):
        return value
    known = schema.get("properties") if isinstance(schema, dict) else None
    known = known if isinstance(known, dict) else {}
    keys = sorted(value, key=lambda key: list(known).index(key) if key in known else len(known))
    return {key: ordered(value[key], known.get(key)) for key in keys}


def run(every: int) -> dict[str, Any]:
    """All measurements."""
    tokenizer = Tokenizer.load(resolve_model("smollm2-135m"))
    tokens = tokenizer.token_bytes()
    assert tokens is not None

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    vocabulary = GrammarVocabulary(tokens, tokenizer.special_ids, tokenizer.eos_token_ids, encode)
    vocabulary.warm()
    for constraint in (Constraint("choice", '["a"]'), Constraint("json_object", "")):
        compile_here(plan_of(constraint), vocabulary)  # the library's tokenizer, once
    sample = [(text, [json.dumps(value, ensure_ascii=False) for value in valid]) for text, valid in schemas(every)]
    found: dict[str, Any] = {"vocabulary": vocabulary.size, "schemas": len(sample), "json": {}, "regex": {}}
    jobs = [(auto(Constraint("json", text), vocabulary), texts) for text, texts in sample]
    found["json"]["auto"] = measured(jobs, vocabulary).summary()
    child = CompileChild(vocabulary)
    for backend, step in (("xgrammar", 6), ("outlines", 12)):
        jobs = []
        for text, texts in sample[::step]:
            plan = Plan(Constraint("json", text, backend), backend, Json(json.loads(text), "spaced"))
            jobs.append((killable(functools.partial(_same, plan), vocabulary, child), texts))
        found["json"][backend] = measured(jobs, vocabulary).summary()
    for backend, step in (("llguidance", 3), ("xgrammar", 3), ("outlines", 12)):
        jobs = []
        for pattern, texts in regexes(step):
            constraint = Constraint("regex", pattern, backend)
            if backend == "llguidance":
                jobs.append((auto(constraint, vocabulary), texts))
            else:
                jobs.append((killable(functools.partial(plan_of, constraint), vocabulary, child), texts))
        found["regex"][backend] = measured(jobs, vocabulary).summary()
    child.close()
    return found


def main() -> None:
    """Measure, compare with the bars, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--check", action="store_true", help="fail where a bar is not met; writes nothing")
    options = parser.parse_args()
    found = run(options.every)
    found["bars"] = {name: {"bar": bar, "is": found["json"]["auto"][name]} for name, bar in BARS.items()}
    found["machine"] = {**machine_facts(), "load": psutil.getloadavg()[0]}  # more than 1: the times are too long
    found["versions"] = version_facts("decodex", "llguidance", "xgrammar", "outlines_core")
    text = json.dumps(found, indent=2)
    print(text)
    missed = [name for name, bar in found["bars"].items() if bar["is"] is None or bar["is"] > bar["bar"]]
    if options.check:
        sys.exit(f"above the bar: {', '.join(missed)}" if missed else 0)
    RESULTS.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
