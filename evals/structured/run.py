"""Structured output on a real model: does what ends with "stop" satisfy its schema, and what does a schema cost?

    .venv/bin/python evals/structured/run.py            # writes evals/results/structured.json

Soundness: requests over different schemas of JSONSchemaBench (../shared/data, see --schemas), at temperature 1 in
batches, once plain and once with finish_within_budget. Each text that ends with "stop" is judged by jsonschema-rs here,
beside the engine's own check. Speed: 64 tokens for each of 1, 8 and 32 requests, with a schema that is longer than that
and without any, by turns; a ratio is the median of the paired ratios.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import itertools
import json
import pathlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

import jsonschema_rs

from decodex import LLM, RequestError, RequestOutput, SamplingParams
from decodex.cli.machine import machine_facts, version_facts

ROOT = pathlib.Path(__file__).resolve().parents[2]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "city": {"type": "string"},
        "active": {"type": "boolean"},
    },
    "required": ["name", "age", "city", "active"],
    "additionalProperties": False,
}
LONG = {"type": "array", "items": PERSON, "minItems": 50}
MAX_SCHEMA = 4000  # characters: longer ones leave the model no room to answer
MAX_SHOWN = 500  # characters of a schema in its prompt


def schemas(folder: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Records of the splits by turns, so that any beginning holds some of each."""
    splits = []
    for file in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            splits.append([{"split": file.name.split(".")[0], **json.loads(line)} for line in lines])
    for records in itertools.zip_longest(*splits):
        yield from (record for record in records if record is not None)


def prompt_of(llm: LLM, text: str) -> list[int]:
    question = f"Write an example of a JSON document that follows this JSON schema:\n{text[:MAX_SHOWN]}"
    return llm.tokenizer.apply_chat_template([{"role": "user", "content": question}])


def params_of(schema: Any, seed: int, max_tokens: int, is_steered: bool) -> SamplingParams:
    constraint = {"json": schema, "finish_within_budget": is_steered}
    return SamplingParams(temperature=1.0, seed=seed, max_tokens=max_tokens, structured_outputs=constraint)


def choose(llm: LLM, options: argparse.Namespace) -> tuple[list[dict[str, Any]], int]:
    """The first schemas that are honoured, also within the budget, and how many were refused on the way."""
    chosen: list[dict[str, Any]] = []
    refused = 0
    for record in schemas(options.schemas):
        text = json.dumps(record["schema"])
        if len(chosen) == options.num_schemas or len(text) > MAX_SCHEMA or not isinstance(record["schema"], dict):
            continue
        try:
            llm.engine.admission.admit(prompt_of(llm, text), params_of(record["schema"], 0, options.max_tokens, True))
        except RequestError:
            refused += 1
        else:
            chosen.append(record)
    return chosen, refused


def judge(schema: Any, text: str) -> str | None:
    """What jsonschema-rs finds wrong with a text, or None."""
    try:
        jsonschema_rs.validator_for(schema, validate_formats=True).validate(json.loads(text))
    except (ValueError, jsonschema_rs.ValidationError) as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    return None


def report(requests: list[tuple[dict[str, Any], RequestOutput]], seconds: float) -> dict[str, Any]:
    """Counts over the outputs, and each that is not as it should be."""
    reasons: collections.Counter[str] = collections.Counter()
    checks: collections.Counter[str] = collections.Counter()
    faults, parsed = [], 0
    for record, output in requests:
        choice = output.outputs[0] if output.outputs else None
        reason = "refused" if choice is None else str(choice.finish_reason)
        reasons[reason] += 1
        if choice is None or reason == "error":
            faults.append({"id": record["id"], "fault": str(output.error)[:300]})
        elif reason == "stop":
            checks[str(choice.check)] += 1
            fault = judge(record["schema"], choice.text)
            parsed += choice.parsed is not None or choice.text == "null"
            if fault is not None:
                faults.append({"id": record["id"], "fault": fault, "text": choice.text[:300]})
    tokens = sum(len(output.outputs[0].token_ids) for _, output in requests if output.outputs)
    return {
        "requests": len(requests),
        "finish_reasons": dict(sorted(reasons.items())),
        "checks": dict(sorted(checks.items())),
        "parsed": parsed,
        "faults": faults,
        "tokens_per_second": round(tokens / seconds, 1),
    }


def soundness(llm: LLM, options: argparse.Namespace) -> dict[str, Any]:
    """All requests, plain and with finish_within_budget."""
    chosen, refused = choose(llm, options)
    result: dict[str, Any] = {
        "schemas": len(chosen),
        "splits": dict(sorted(collections.Counter(record["split"] for record in chosen).items())),
        "refused_on_the_way": refused,
    }
    records = [record for record in chosen for _ in range(options.repeats)]
    prompts = [prompt_of(llm, json.dumps(record["schema"])) for record in records]
    for name, is_steered in (("plain", False), ("finish_within_budget", True)):
        params = [params_of(record["schema"], i, options.max_tokens, is_steered) for i, record in enumerate(records)]
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        result[name] = report(list(zip(records, outputs, strict=True)), time.perf_counter() - start)
        shown = {key: value for key, value in result[name].items() if key != "faults"}
        print(name, shown, f"{len(result[name]['faults'])} faults", flush=True)
    return result


def run_batch(llm: LLM, prompts: list[list[int]], constraint: dict[str, Any] | None, max_tokens: int) -> float:
    """Tokens/s of one batch that generates exactly `max_tokens` each."""
    params = [
        SamplingParams(max_tokens=max_tokens, seed=i, ignore_eos=True, structured_outputs=constraint)
        for i in range(len(prompts))
    ]
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    assert tokens == max_tokens * len(prompts), f"{tokens} tokens, expected {max_tokens} for each request"
    return tokens / seconds


def speed(llm: LLM, options: argparse.Namespace) -> dict[str, Any]:
    """With a schema beside without, by turns."""
    texts = [f"Invent {10 + i} people as a JSON list with name, age, city and active." for i in range(32)]
    prompts = [llm.tokenizer.apply_chat_template([{"role": "user", "content": text}]) for text in texts]
    constraint = {"json": LONG}
    run_batch(llm, prompts[:2], constraint, 8)
    result = {}
    for batch in (1, 8, 32):
        free: list[float] = []
        constrained: list[float] = []
        for number in range(options.rounds):
            order: list[tuple[list[float], dict[str, Any] | None]] = [(free, None), (constrained, constraint)]
            for speeds, wanted in order if number % 2 == 0 else order[::-1]:
                speeds.append(run_batch(llm, prompts[:batch], wanted, 64))
        ratio = statistics.median(c / f for c, f in zip(constrained, free, strict=True))
        result[str(batch)] = {
            "ratio": round(ratio, 3),
            "free": [round(s, 1) for s in free],
            "with_schema": [round(s, 1) for s in constrained],
        }
        print(f"batch {batch}: {result[str(batch)]}", flush=True)
    return result


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--schemas", type=pathlib.Path, default=ROOT.parent / "shared" / "data" / "jsonschemabench")
    parser.add_argument("--num-schemas", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=2, help="requests for each schema")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", default="soundness,speed")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "evals" / "results" / "structured.json")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    llm = LLM(options.model, max_num_seqs=options.batch, speculative_config=None)
    old = json.loads(options.out.read_text("utf-8")) if options.out.exists() else {}
    settings = {name: getattr(options, name) for name in ("model", "repeats", "batch", "max_tokens", "rounds")}
    facts = {
        "machine": machine_facts(),
        "versions": version_facts("decodex", "torch", "llguidance", "xgrammar", "outlines_core", "jsonschema_rs"),
        "settings": settings,
    }
    measured = {name: {"soundness": soundness, "speed": speed}[name](llm, options) for name in options.parts.split(",")}
    kept = {name: old[name] for name in ("soundness", "speed") if name in old and name not in measured}
    options.out.write_text(json.dumps({**facts, **kept, **measured}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
